# A server of 10,000 small files in $1, and a client that fetches each, on a port of their own.
nginx -p "$1" -e errors -c nginx.conf &
server=$!
"$1/fetch" 7398 10000 || exit 1
kill -QUIT $server
wait $server
