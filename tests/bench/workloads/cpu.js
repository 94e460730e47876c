// Numbers, a map, strings and calls.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
const sums = new Map();
for (let i = 0; i < 6e6; i++) {
  const key = (i * 7919) % 50021;
  sums.set(key, (sums.get(key) || 0) + i);
}
let total = 0;
for (const [key, sum] of sums) total = (total + key * sum) % 1000000007;
const words = Array.from({ length: 400000 }, (_, i) => String((i * 48271) % 65537)).sort();
console.log(total, words[777], fib(34));
