#!/bin/sh
# Say in one line what is missing if Spark 4.0 cannot run on the Java it would pick (exit 2).
java=java
[ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9.]*\).*/\1/p' | head -n 1)
major=${version%%.*}
# From Java 24 on Hadoop's login code does not run any more.
if [ -z "$major" ] || [ "$major" -lt 17 ] || [ "$major" -gt 23 ]; then
    echo "missing: Java 17 or 21 (found: ${version:-none}); get it with: apt-get install openjdk-17-jre-headless, or set JAVA_HOME" >&2
    exit 2
fi
