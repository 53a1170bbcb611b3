"""Asks PyPI's advisories whether a pinned version has a known vulnerability; exits with 1 if one has.

    python .ci/audit.py PIP_AUDIT constraints.txt

PIP_AUDIT is the program of the package pip-audit. Where PyPI's advisories can't be had, such as behind a mirror of its
files alone, the audit says that it was skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main(program: str, constraints: str) -> int:
    options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "10", "--format", "json")
    done = subprocess.run([program, "--requirement", constraints, *options], stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        print(f"audit FAILED: pip-audit ended with {done.returncode} and no result")
        return 1
    packages = json.loads(done.stdout)["dependencies"]
    audited = [package for package in packages if "skip_reason" not in package]
    found = [(package, one) for package in audited for one in package["vulns"]]
    for package, one in found:
        fixed = ", ".join(one["fix_versions"]) or "none"
        print(f"{package['name']} {package['version']}: {one['id']}, mended in {fixed}")
    if not audited:
        print(f"audit SKIPPED: no advisories can be had here, for none of {len(packages)} packages")
    else:
        print(f"audited {len(audited)} of {len(packages)} packages: {len(found)} known vulnerabilities")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
