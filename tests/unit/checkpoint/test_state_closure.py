"""state_closure: exactly the files that Spark loads a version from, for each way of keeping state."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.checkpoint.state_closure import store_closure
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import HDFS, ROCKSDB, Files, changelog, plant, snapshot_zip

STORE = "state/0/1"
LOST = "Spark cannot load this version either; restore a backup, or rewind to a batch whose state is whole"
#: Unique ids of one lineage: version 1 has the first, and so on; and one of another timeline.
IDS = [f"{n:08x}-1111-2222-3333-444455556666" for n in range(20)]
OTHER = "ffffffff-1111-2222-3333-444455556666"


def needed(
    place: Location, files: Files | list[str], version: int, *, provider: str = HDFS, unique_id: str | None = None
) -> list[str]:
    content = files if isinstance(files, dict) else dict.fromkeys(files, b"x")
    tree = Tree.of(plant(place / STORE, content) and place)
    found = store_closure(tree, STORE, StateVersion(version, unique_id), provider=provider, codec="lz4")
    return [file.path.removeprefix(f"{STORE}/") for file in found]


def missing(place: Location, files: Files | list[str], version: int, path: str, **options: str | None) -> None:
    with pytest.raises(MissingFileError) as error:
        needed(place, files, version, **options)  # type: ignore[arg-type]
    assert error.value.path == f"{STORE}/{path}"
    assert error.value.message == f"{STORE}/{path} is missing, state version {version} needs it"
    assert error.value.hint == LOST


class TestHdfsBacked:
    def test_all_deltas_where_there_is_no_snapshot(self, place: Location) -> None:
        files = ["1.delta", "2.delta", "3.delta", "4.delta"]
        assert needed(place, files, 3) == ["1.delta", "2.delta", "3.delta"]

    def test_from_the_newest_snapshot_up_to_the_version(self, place: Location) -> None:
        files = ["2.delta", "2.snapshot", "3.delta", "4.snapshot", "4.delta", "5.delta", "6.delta"]
        assert needed(place, files, 5) == ["4.snapshot", "5.delta"]

    def test_a_snapshot_of_the_version_alone(self, place: Location) -> None:
        assert needed(place, ["5.delta", "5.snapshot", "6.delta"], 5) == ["5.snapshot"]

    def test_a_newer_snapshot_is_not_taken(self, place: Location) -> None:
        """What a rewind left behind: of a timeline that is gone."""
        assert needed(place, ["4.snapshot", "5.delta", "9.snapshot", "16.snapshot"], 5) == ["4.snapshot", "5.delta"]

    def test_versions_count_as_numbers(self, place: Location) -> None:
        files = ["9.snapshot", *(f"{v}.delta" for v in (10, 11, 100))]
        assert needed(place, files, 11) == ["9.snapshot", "10.delta", "11.delta"]

    @pytest.mark.parametrize("gone", [5, 6, 7])
    def test_a_missing_delta_is_named(self, place: Location, gone: int) -> None:
        missing(place, ["4.snapshot", *(f"{v}.delta" for v in (5, 6, 7) if v != gone)], 7, f"{gone}.delta")

    def test_an_empty_store(self, place: Location) -> None:
        missing(place, ["unrelated"], 3, "1.delta")

    def test_changelogs_and_zips_are_none_of_its_files(self, place: Location) -> None:
        missing(place, ["2.zip", "3.changelog", "3.zip"], 3, "1.delta")

    def test_the_start_is_not_the_newest_in_time_but_up_to_the_version(self, place: Location) -> None:
        assert needed(place, ["1.delta", "2.delta", "2.snapshot"], 1) == ["1.delta"]


def rocksdb(zips: tuple[int, ...] = (), logs: tuple[int, ...] = ()) -> Files:
    """Each zip with a table of its own and one that all share."""
    files: Files = {f"{v}.changelog": b"c" for v in logs}
    for version in zips:
        tables = {"shared.sst": 6, f"{version}.sst": version}
        files |= {f"SSTs/{name}": b"." * size for name, size in tables.items()}
        files[f"{version}.zip"] = snapshot_zip(tables, {f"{version}.log": 2})
        files[f"logs/{version}.log"] = b".."
    return files


class TestRocksDB:
    def test_without_changelog_a_zip_and_its_tables(self, place: Location) -> None:
        found = needed(place, rocksdb(zips=(3, 4, 5)), 4, provider=ROCKSDB)
        assert found == ["SSTs/shared.sst", "SSTs/4.sst", "logs/4.log", "4.zip"]

    def test_with_changelog_from_the_newest_zip_on(self, place: Location) -> None:
        files = rocksdb(zips=(2, 4, 7), logs=(2, 3, 4, 5, 6, 7, 8))
        assert needed(place, files, 6, provider=ROCKSDB) == [
            "SSTs/shared.sst", "SSTs/4.sst", "logs/4.log", "4.zip", "5.changelog", "6.changelog",
        ]  # fmt: skip

    def test_changelogs_alone_before_the_first_zip(self, place: Location) -> None:
        files = rocksdb(logs=(1, 2, 3, 4))
        assert needed(place, files, 3, provider=ROCKSDB) == ["1.changelog", "2.changelog", "3.changelog"]

    def test_a_newer_zip_is_not_taken(self, place: Location) -> None:
        """Two of a timeline that was rewound: Spark would load them, and so must nobody here."""
        files = rocksdb(zips=(12, 15), logs=(1, 2, 3))
        assert needed(place, files, 3, provider=ROCKSDB) == ["1.changelog", "2.changelog", "3.changelog"]

    def test_a_zip_and_a_changelog_of_the_version(self, place: Location) -> None:
        found = needed(place, rocksdb(zips=(4,), logs=(3, 4)), 4, provider=ROCKSDB)
        assert found == ["SSTs/shared.sst", "SSTs/4.sst", "logs/4.log", "4.zip"]

    @pytest.mark.parametrize("gone", [5, 6])
    def test_a_missing_changelog_is_named(self, place: Location, gone: int) -> None:
        files = rocksdb(zips=(4,), logs=tuple(v for v in (5, 6) if v != gone))
        missing(place, files, 6, f"{gone}.changelog", provider=ROCKSDB)

    @pytest.mark.parametrize("gone", ["SSTs/shared.sst", "SSTs/4.sst", "logs/4.log"])
    def test_a_missing_table_is_named(self, place: Location, gone: str) -> None:
        files = rocksdb(zips=(4,))
        del files[gone]
        missing(place, files, 4, gone, provider=ROCKSDB)

    @pytest.mark.parametrize("content", [b"", b".....", b"......."])
    def test_a_table_of_the_wrong_size(self, place: Location, content: bytes) -> None:
        files = rocksdb(zips=(4,)) | {"SSTs/shared.sst": content}
        with pytest.raises(MissingFileError) as error:
            needed(place, files, 4, provider=ROCKSDB)
        assert error.value.message == f"{STORE}/SSTs/shared.sst: has {len(content)} bytes, {STORE}/4.zip needs 6"
        assert (error.value.path, error.value.hint) == (f"{STORE}/SSTs/shared.sst", LOST)

    def test_a_damaged_zip_is_named(self, place: Location) -> None:
        with pytest.raises(UnreadableLogError, match=rf"^{STORE}/4.zip: not a readable RocksDB snapshot"):
            needed(place, rocksdb(zips=(4,)) | {"4.zip": b"PK"}, 4, provider=ROCKSDB)

    def test_tables_come_before_their_zip(self, place: Location) -> None:
        found = needed(place, rocksdb(zips=(4,)), 4, provider=ROCKSDB)
        assert found.index("4.zip") > max(found.index(f) for f in found if f.startswith("SSTs/"))

    @pytest.mark.parametrize("kind", ["zip", "changelog"])
    def test_files_with_ids_are_none_of_its_files(self, place: Location, kind: str) -> None:
        files = rocksdb(logs=(1, 2, 3)) | {f"3_{OTHER}.{kind}": snapshot_zip({})}
        assert needed(place, files, 3, provider=ROCKSDB) == ["1.changelog", "2.changelog", "3.changelog"]


def lineage_files(newest: int, *, zips: tuple[int, ...] = (), since: int = 1, without: tuple[int, ...] = ()) -> Files:
    """One timeline of format 2: each changelog records the versions since ``since``, as Spark does after a zip there."""
    files: Files = {}
    for version in range(1, newest + 1):
        if version not in without:
            before = [(v, IDS[v]) for v in range(since, version)]
            files[f"{version}_{IDS[version]}.changelog"] = changelog(before)
    for version in zips:
        table = f"{version}-{OTHER}.sst"
        files[f"SSTs/{table}"] = b"sst"
        files[f"{version}_{IDS[version]}.zip"] = snapshot_zip({table: 3})
    return files


class TestFormat2:
    def closure(self, place: Location, files: Files, version: int, unique_id: str | None = None) -> list[str]:
        return needed(place, files, version, provider=ROCKSDB, unique_id=unique_id or IDS[version])

    def test_from_the_beginning(self, place: Location) -> None:
        found = self.closure(place, lineage_files(4), 3)
        assert found == [f"{v}_{IDS[v]}.changelog" for v in (1, 2, 3)]

    def test_the_first_version(self, place: Location) -> None:
        assert self.closure(place, lineage_files(1), 1) == [f"1_{IDS[1]}.changelog"]

    def test_from_the_newest_zip_of_the_lineage(self, place: Location) -> None:
        found = self.closure(place, lineage_files(6, zips=(2, 3, 6)), 5)
        assert found == [f"SSTs/3-{OTHER}.sst", f"3_{IDS[3]}.zip", f"4_{IDS[4]}.changelog", f"5_{IDS[5]}.changelog"]

    def test_a_lineage_that_begins_at_a_zip(self, place: Location) -> None:
        files = lineage_files(6, zips=(4,), since=4, without=(1, 2, 3, 4))
        found = self.closure(place, files, 6)
        assert found == [f"SSTs/4-{OTHER}.sst", f"4_{IDS[4]}.zip", f"5_{IDS[5]}.changelog", f"6_{IDS[6]}.changelog"]

    def test_a_zip_of_the_version(self, place: Location) -> None:
        assert self.closure(place, lineage_files(6, zips=(5,)), 5) == [f"SSTs/5-{OTHER}.sst", f"5_{IDS[5]}.zip"]

    def test_other_ids_of_the_same_versions_are_never_taken(self, place: Location) -> None:
        """Retries and rewinds leave them; by name they look as good as the right ones, or better."""
        strange = {f"{v}_{OTHER}.{kind}": snapshot_zip({}) for v in range(1, 9) for kind in ("zip", "changelog")}
        files = lineage_files(6, zips=(2,)) | strange
        found = self.closure(place, files, 4)
        assert found == [f"SSTs/2-{OTHER}.sst", f"2_{IDS[2]}.zip", f"3_{IDS[3]}.changelog", f"4_{IDS[4]}.changelog"]

    def test_a_branch_after_a_rewind(self, place: Location) -> None:
        """The commit names the new branch; its lineage leads back to the common past."""
        branch = "eeeeeeee-1111-2222-3333-444455556666"
        new = {f"4_{branch}.changelog": changelog([(v, IDS[v]) for v in (1, 2, 3)])}
        found = self.closure(place, lineage_files(6) | new, 4, branch)
        assert found == [*(f"{v}_{IDS[v]}.changelog" for v in (1, 2, 3)), f"4_{branch}.changelog"]

    def test_the_committed_version_is_missing(self, place: Location) -> None:
        missing(place, lineage_files(6, without=(4,)), 4, f"4_{IDS[4]}.changelog", provider=ROCKSDB, unique_id=IDS[4])

    def test_one_of_the_lineage_is_missing(self, place: Location) -> None:
        missing(place, lineage_files(6, without=(2,)), 4, f"2_{IDS[2]}.changelog", provider=ROCKSDB, unique_id=IDS[4])

    def test_the_zip_that_the_lineage_begins_at_is_missing(self, place: Location) -> None:
        files = lineage_files(6, since=4, without=(1, 2, 3))
        missing(place, files, 6, f"4_{IDS[4]}.zip", provider=ROCKSDB, unique_id=IDS[6])

    def test_neither_zip_nor_lineage_for_a_version_after_one(self, place: Location) -> None:
        files = {f"6_{IDS[6]}.changelog": changelog([])}
        missing(place, files, 6, f"6_{IDS[6]}.zip", provider=ROCKSDB, unique_id=IDS[6])

    def test_a_damaged_changelog_is_named(self, place: Location) -> None:
        files = lineage_files(4) | {f"4_{IDS[4]}.changelog": b"LZ4Block"}
        with pytest.raises(
            UnreadableLogError, match=rf"^{STORE}/4_{IDS[4]}.changelog: not a readable RocksDB changelog"
        ):
            self.closure(place, files, 4)

    def test_the_codec_is_the_pinned_one(self, place: Location) -> None:
        files = {
            f"2_{IDS[2]}.changelog": changelog([(1, IDS[1])], codec="zstd"),
            f"1_{IDS[1]}.changelog": b"never read",
        }
        tree = Tree.of(plant(place / STORE, files) and place)
        found = store_closure(tree, STORE, StateVersion(2, IDS[2]), provider=ROCKSDB, codec="zstd")
        assert len(found) == 2


def test_checksum_files_travel_with_their_files(place: Location) -> None:
    """Each right after its own, hidden ones never, one without its main file never."""
    files = {"3.delta": b"d", "3.delta.crc": b"{}", ".3.delta.crc": b"h", "2.snapshot": b"s", "2.snapshot.crc": b"{}"}
    assert needed(place, files | {"4.delta.crc": b"{}"}, 3) == [
        "2.snapshot", "2.snapshot.crc", "3.delta", "3.delta.crc",
    ]  # fmt: skip


def test_checksum_file_of_a_zip(place: Location) -> None:
    files = lineage_files(1, zips=(1,)) | {f"1_{IDS[1]}.zip.crc": b"{}"}
    found = needed(place, files, 1, provider=ROCKSDB, unique_id=IDS[1])
    assert found == [f"SSTs/1-{OTHER}.sst", f"1_{IDS[1]}.zip", f"1_{IDS[1]}.zip.crc"]


@pytest.mark.parametrize("provider", ["com.example.MyProvider", ""])
def test_an_unknown_provider_is_refused(place: Location, provider: str) -> None:
    with pytest.raises(RefusedError) as error:
        needed(place, ["1.delta"], 1, provider=provider)
    assert error.value.message == (
        f"{STORE}: the state store provider {provider} is not known here, so its files cannot be distinguished"
    )
    assert error.value.hint == "stop the query and copy the whole checkpoint, or report the provider"
