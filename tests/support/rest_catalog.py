"""A real REST catalog of Iceberg for tests: Iceberg's own adapter and servlet over a SQL catalog on disk, in one JVM.

Iceberg's ``RESTCatalogServer`` listens on every interface, without a login. So Jetty is put together from here, by Py4J (which
Spark brings): on 127.0.0.1, at a port from the OS.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

_LISTING = Path("dev/rest-catalog-jars.txt")
_JARS = Path(".cache/ivy/rest-catalog-jars.jars")


@contextmanager
def running_rest_catalog(directory: Path) -> Iterator[str]:
    """Run a catalog until the block ends; its URI.

    :param directory: an empty directory for its database and the data of its tables.
    """
    if subprocess.run([sys.executable, "dev/fetch_jars.py", str(_LISTING)], check=False).returncode:
        raise RuntimeError("the jars of the REST catalog could not be fetched")
    with (directory / "catalog.log").open("ab") as log:
        port, token, process = launch_gateway(
            jarpath=str(_py4j()),
            classpath=":".join(_JARS.read_text().split()),
            javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
            redirect_stdout=log,
            redirect_stderr=log,
            die_on_exit=True,
            enable_auth=True,
            create_new_process_group=True,
            return_proc=True,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        jvm = gateway.jvm
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
            "jdbc.schema-version": "V1",
        }
        hadoop = jvm.org.apache.hadoop.conf.Configuration()
        catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog("lake", settings, hadoop)
        servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(
            jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog)
        )
        server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
        context = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
        context.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
        server.setHandler(context)
        server.start()
        yield f"http://127.0.0.1:{server.getConnectors()[0].getLocalPort()}"
    finally:
        gateway.close()
        process.kill()
        process.wait()


def _py4j() -> Path:
    [package] = importlib.util.find_spec("pyspark").submodule_search_locations  # type: ignore[union-attr, misc]
    return next(Path(package, "jars").glob("py4j-*.jar"))
