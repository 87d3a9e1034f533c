#!/bin/sh
# Makes the calls of a file (method, path and body in each line, separated by tabs) with curl and
# prints the status of each reply.
while IFS="$(printf '\t')" read -r method path body; do
  if [ "$method" = GET ]; then
    curl -s -o /dev/null -w '%{http_code}\n' "$1$path"
  else
    curl -s -o /dev/null -w '%{http_code}\n' -H 'content-type: application/json' -d "$body" "$1$path"
  fi
done <"$2"
