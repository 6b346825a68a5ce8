#!/bin/sh
# A day of work with workspacefs, in a minute: run by `make quickstart`.
#   ./quickstart.sh            go through it; leaves a mount to play with
#   ./quickstart.sh --remove   take that mount and all its data away
set -eu

repository=$(cd "$(dirname "$0")" && pwd)
demo=${TMPDIR:-/tmp}/workspacefs-quickstart-$(id -u)
store=$demo/store
work=$demo/work
other=$demo/elsewhere
PATH=$repository/.venv/bin:$PATH
export WORKSPACEFS_STATE_DIR="$demo/state"

remove() {
    for mountpoint in "$work" "$other"; do
        if grep -qF " $mountpoint " /proc/self/mountinfo; then
            workspacefs umount --force "$mountpoint" >/dev/null 2>&1 ||
                workspacefs umount --lazy "$mountpoint" >/dev/null
        fi
    done
    workspacefs supervisor stop >/dev/null 2>&1 || true
    rm -rf "$demo"
}

bold='' plain=''
[ ! -t 1 ] || { bold=$(printf '\033[1m'); plain=$(printf '\033[0m'); }

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# step "what for" command...   shows the command, its output (indented), and how long it took
step() {
    printf '\n%s%s%s\n' "$bold" "$1" "$plain"
    shift
    printf '  $ %s\n' "$*" | sed "s|$demo/|~demo/|g"
    began=$(now_ms)
    "$@" >"$demo/output" 2>&1 || { sed 's/^/    /' "$demo/output"; echo "failed: $*" >&2; exit 1; }
    took=$(($(now_ms) - began))
    head -n "${lines:-12}" "$demo/output" | sed 's/^/    /'
    rest=$(($(wc -l <"$demo/output") - ${lines:-12}))
    [ "$rest" -le 0 ] || echo "    ... and $rest lines more"
    printf '    (%d ms)\n' "$took"
}

in_work() { (cd "$work" && "$@"); }
count_files() { find "$1" -xdev -type f | wc -l; }
append() { echo "$2" >>"$work/$1"; }

if [ "${1:-}" = --remove ]; then
    remove
    exit 0
fi

remove
mkdir -p "$work" "$other"
chmod 700 "$demo"
echo "~demo stands for $demo"

step "A workspace is a directory with everything ever committed." \
    workspacefs init "$store"
step "Import a real tree: this repository and its virtual environment." \
    workspacefs import "$store" "$repository" -m "import the repository"
step "Mount it. The first mount starts a daemon; the next ones are faster." \
    workspacefs mount "$store" "$work" --session quickstart
step "It is an ordinary directory." ls -la "$work"
step "Count its files." count_files "$work"
if [ -d "$repository/.git" ]; then
    lines=4 step "git works in it." in_work git -c safe.directory='*' log --oneline -4
    step "So does git status." in_work git -c safe.directory='*' status --short
fi
lines=4 step "And grep, over all of it." in_work grep -rl "def main" --include=*.py .
step "Python runs from the imported environment." in_work .venv/bin/python -c \
    'import trio, sys; print("trio", trio.__version__, "from", trio.__file__)'

step "Change something." append README.md "A line written on the mount."
step "Add something." append notes.txt "Remember the milk."
step "What changed? This costs what changed, not what is there." workspacefs status "$work"
lines=20 step "How?" workspacefs diff "$work"
step "Keep it, and land it on main." workspacefs commit "$work" -m "try the quickstart" --into main \
    --agent quickstart --meta "made-with=make quickstart"
lines=14 step "Who did what, when, why." workspacefs log "$store" -n 1 --stat

step "Somewhere else, with nothing but the store: a second mount." \
    workspacefs mount "$store" "$other" --session second --state-dir "$demo/state-elsewhere"
step "It has what was committed." cat "$other/notes.txt"
step "And yesterday is still there." workspacefs ls "$store@main~1" workspacefs
step "Take the second mount away." \
    workspacefs umount "$other" --state-dir "$demo/state-elsewhere"
workspacefs supervisor stop --state-dir "$demo/state-elsewhere" >/dev/null

cat <<END

Yours to play with: $work

    export PATH=$repository/.venv/bin:\$PATH
    cd $work                      # work as in any directory
    workspacefs status
    workspacefs commit -m "why"

Remove it and all its data with: $repository/quickstart.sh --remove
END
