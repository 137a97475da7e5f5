"""Files of an Iceberg table by their URIs, for pyiceberg, where the table is known by its directory and no catalog says more."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location, inside


def files_below(place: Location) -> Any:
    """A ``FileIO`` of pyiceberg that reads the files in a directory, and refuses others.

    :param place: the table's directory.
    """
    from pyiceberg.io import FileIO, InputFile, OutputFile

    class FileBelow(InputFile):
        """One file of the table."""

        def _path(self) -> str:
            found = inside(place, self.location, encoded=False)
            if found is None:
                raise RefusedError(
                    f"{self.location} does not lie in {place}: how it is reached is not known",
                    hint="give the table's name in a catalog: iceberg:CATALOG.NAMESPACE.TABLE",
                )
            return found

        def __len__(self) -> int:
            return place.size(self._path()) or 0

        def exists(self) -> bool:
            """Whether it is there, by one small read."""
            try:
                place.read_part(self._path(), 0, 4)
            except FileNotFoundError:
                return False
            return True

        def open(self, seekable: bool = True) -> Any:
            """Its content."""
            return BytesIO(place.read(self._path()))

    class FilesBelow(FileIO):
        """The files of the table, for reading."""

        def new_input(self, location: str) -> FileBelow:
            """One of them."""
            return FileBelow(location)

        def new_output(self, location: str) -> OutputFile:
            """Nothing is written."""
            raise NotImplementedError(location)

        def delete(self, location: str | InputFile | OutputFile) -> None:
            """Nothing is deleted."""
            raise NotImplementedError(str(location))

    return FilesBelow()
