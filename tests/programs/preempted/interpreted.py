# An interpreter with threads that compute.
import sys
import threading

sys.setswitchinterval(0.0005)
results = [0, 0, 0]


def work(me):
    table, value = {}, me
    for i in range(20000):
        value = (value * 31 + i) % 1000003
        table[value % 257] = table.get(value % 257, 0) + 1
    results[me] = value * 1000 + sum(table.values()) % 1000


threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(results)
