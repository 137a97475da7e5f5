#!/bin/sh
# Let Docker read docker-compose.yml with every variable of .env.example set; starts nothing, needs no running engine.
set -eu
if ! docker compose version >/dev/null 2>&1; then
    echo "missing: the compose plugin of docker; get it with: apt-get install docker-compose-v2 (or docker-compose-plugin)" >&2
    exit 2
fi
for name in $(sed -n 's/^\([A-Z0-9_]*\)=.*/\1/p' .env.example); do
    export "$name=checked"
done
docker compose --env-file /dev/null config --quiet
echo "docker-compose.yml is well formed"
