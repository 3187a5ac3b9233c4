# Sourced by bin/test and bin/demo: finds a Python and keeps .venv. Does nothing by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

say() { printf '%s\n' "$*" >&2; }

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        if [ -n "$name" ] && command -v "$name" >/dev/null && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    say "Wakeboard needs Python 3.11 or newer, and none was found on the PATH."
    say "Install it (Debian: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3 $0"
    return 1
}

make_venv() {
    local python
    python=$(find_python)
    rm -rf "$venv"
    say "Creating .venv with $("$python" --version)."
    if ! "$python" -m venv "$venv" >&2; then
        rm -rf "$venv"
        say "$python cannot make a virtual environment. On Debian its venv is a package of its own:"
        say "apt-get install python3-venv"
        return 1
    fi
}

# ensure_venv EXTRAS: .venv works and holds this checkout with EXTRAS, such as '[demo]' or '[test]'. A stamp of
# pyproject.toml makes the second time quick; what was installed with more extras also does for fewer.
ensure_venv() {
    local extras=$1 wanted stamp=$venv/.wakeboard-installed
    wanted=$(cksum <"$root/pyproject.toml")
    if [ -f "$stamp" ] && { [ "$(cat "$stamp")" = "$wanted$extras" ] || [ "$(cat "$stamp")" = "$wanted[test]" ]; } &&
        "$venv/bin/python" -c 'import wakeboard' 2>/dev/null; then
        return
    fi
    if ! { is_new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
        make_venv
    fi
    say "Installing Wakeboard into .venv; the first time this takes a minute."
    rm -f "$stamp"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --editable "$root$extras" >&2
    printf '%s' "$wanted$extras" >"$stamp"
}
