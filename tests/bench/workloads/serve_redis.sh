# A server and the client that loads it, on a port of their own.
redis-server --port 7399 --save "" --appendonly no >/dev/null 2>&1 &
server=$!
until redis-cli -p 7399 ping >/dev/null 2>&1; do sleep 0.05; done
redis-benchmark -p 7399 -q -n 20000 -c 10 -t set,get,lpush
redis-cli -p 7399 shutdown nosave
wait $server
