#!/usr/bin/env python3
"""Makes a wheel of the archive of cmake/pack.sh, so that `pip install` gives the command: cmake/wheel.py ARCHIVE GLIBC FOLDER

The program becomes one of the wheel's scripts and its libraries data, so an installation has bin/terrace and lib/terrace beside each other as
the archive has. There is no Python in it. The manual page and the completions are left out: a shell does not look for them in an
environment of Python, and pip would leave their empty folders behind. GLIBC, as 2.35, is the oldest one that it runs with.
"""
import base64
import hashlib
import pathlib
import re
import sys
import tarfile
import zipfile

METADATA = """Metadata-Version: 2.1
Name: terrace
Version: {version}
Summary: trains language models that do not fit in memory
"""
WHEEL = """Wheel-Version: 1.0
Generator: terrace
Root-Is-Purelib: false
Tag: {tag}
"""


def members(archive):
    """(path below the archive's folder, bytes, executable). A wheel has no links, so the file stands under its link's name alone."""
    with tarfile.open(archive) as tar:
        links = {m.name: str(pathlib.PurePosixPath(m.name).parent / m.linkname) for m in tar if m.issym()}

        def end_of(name):
            return end_of(links[name]) if name in links else name

        linked = {end_of(name) for name in links} | set(links.values())
        for member in tar:
            if member.name in linked or member.isdir():
                continue
            file = tar.getmember(end_of(member.name))
            yield member.name.split("/", 1)[1], tar.extractfile(file).read(), bool(file.mode & 0o100)


def main(archive, glibc, folder):
    version, machine = re.fullmatch(r"terrace-(.+)-linux-(.+)\.tar\.gz", pathlib.Path(archive).name).groups()
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{machine}"
    wheel = pathlib.Path(folder) / f"terrace-{version}-{tag}.whl"
    data, info = f"terrace-{version}.data", f"terrace-{version}.dist-info"
    record = []

    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:

        def add(name, content, executable=False):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            out.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")

        for path, content, executable in members(archive):
            if path.startswith("bin/"):
                add(f"{data}/scripts/{path.removeprefix('bin/')}", content, executable)
            elif path.startswith("lib/"):
                add(f"{data}/data/{path}", content, executable)
            elif path.endswith("/copyright"):
                add(f"{info}/licenses/copyright", content)
        add(f"{info}/METADATA", METADATA.format(version=version).encode())
        add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
        out.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(record) + f"{info}/RECORD,,\n")
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
