#!/bin/sh
# Let Docker Compose read docker-compose.yml with every variable of .env.example set; starts nothing, needs no running engine.
set -eu
if docker compose version >/dev/null 2>&1; then
    compose="docker compose"
elif command -v docker-compose >/dev/null 2>&1; then
    compose="docker-compose"
else
    echo "missing: docker compose; get it with: apt-get install docker-compose" >&2
    exit 2
fi
for name in $(sed -n 's/^\([A-Z0-9_]*\)=.*/\1/p' .env.example); do
    export "$name=checked"
done
$compose config --quiet
echo "docker-compose.yml is well formed"
