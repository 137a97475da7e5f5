#!/bin/sh
# Build both distributions for a tag (v<version>) into dist/, and check what is built. From the root of the checkout, after dev/venv.sh.
set -eu
tag=${1:?usage: dev/release-check.sh v<version>}
version=$(.venv/bin/python -c 'import airflow_ckpt_provider as p; print(p.__version__)')
if [ "$tag" != "v$version" ]; then
    echo "the tag is $tag and airflow_ckpt_provider/__init__.py says $version" >&2
    exit 1
fi
# Entries below "Unreleased" would not be in the release.
newest=$(awk '/^## / { h = $2; if (h != "Unreleased") { print h; exit } next } h && NF { print h; exit }' CHANGELOG.md)
if [ "$newest" != "$version" ]; then
    echo "the newest section of CHANGELOG.md is not $version" >&2
    exit 1
fi
if ! grep -q "^    \"airflow-ckpt-core==$version\",$" pyproject.toml; then
    echo "pyproject.toml does not depend on airflow-ckpt-core==$version" >&2
    exit 1
fi
# A package index shows the README without the files that it links to.
if [ -n "${GITHUB_REPOSITORY:-}" ]; then
    at=https://github.com/$GITHUB_REPOSITORY
    sed -E -i -e "s#(!\[[^]]*\]\()(docs/)#\1$at/raw/$tag/\2#g" -e "s#\]\((docs/|[A-Z]+\.md)#]($at/blob/$tag/\1#g" README.md
fi
rm -rf dist
(cd core && ../.venv/bin/python -m hatchling build -d ../dist >/dev/null)
.venv/bin/python -m hatchling build -d dist >/dev/null
dev/uv.sh tool run --quiet --from twine==7.0.0 twine check --strict dist/*.whl dist/*.tar.gz
# In an environment of its own, as a user installs it.
dev/uv.sh venv --quiet --clear --python .venv/bin/python .cache/release-check
dev/uv.sh pip install --quiet --python .cache/release-check/bin/python dist/*.whl
[ "$(.cache/release-check/bin/airflow-ckpt --version | tr -dc '0-9.')" = "$version" ]
.cache/release-check/bin/python -c 'from airflow.providers_manager import ProvidersManager as P; assert "airflow-ckpt-provider" in P().providers'
rm -rf .cache/release-check
ls dist
