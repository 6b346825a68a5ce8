#!/bin/sh
# A day of work with workspacefs, in a minute: run by `make quickstart`.
#   ./quickstart.sh            go through it; leaves a mount to play with
#   STORE=s3 ./quickstart.sh   the same in a bucket, of an S3 server that it starts and leaves running
#   ./quickstart.sh --remove   take that mount, that server and all their data away
set -eu

repository=$(cd "$(dirname "$0")" && pwd)
demo=${TMPDIR:-/tmp}/workspacefs-quickstart-$(id -u)
server=$demo/server
environment=$demo/env.sh
work=$demo/work
other=$demo/elsewhere
state_elsewhere=$demo/state-elsewhere
PATH=$repository/.venv/bin:$PATH
export WORKSPACEFS_STATE_DIR="$demo/state"

remove() {
    for mountpoint in "$work" "$other"; do
        if grep -qF " $mountpoint " /proc/self/mountinfo; then
            workspacefs umount --force "$mountpoint" >/dev/null 2>&1 ||
                workspacefs umount --lazy "$mountpoint" >/dev/null
        fi
    done
    for state in "$WORKSPACEFS_STATE_DIR" "$state_elsewhere"; do
        workspacefs supervisor stop --state-dir "$state" >/dev/null 2>&1 || true
    done
    stop_server
    rm -rf "$demo"
}

# The S3 server: SeaweedFS, which comes with what tests need. It listens on 127.0.0.1 only, keeps
# all it has below $server, and takes one pair of keys, made anew each time.

start_server() {
    mkdir -m 700 "$server" "$server/data"
    access_key=$(random_hex 8) secret_key=$(random_hex 20)
    # shellcheck disable=SC2046  # eight words
    set -- $(free_ports 8)
    (
        umask 077
        cat >"$server/identities.json" <<END
{"identities": [{"name": "demo", "actions": ["Admin", "Read", "Write", "List"],
  "credentials": [{"accessKey": "$access_key", "secretKey": "$secret_key"}]}]}
END
        cat >"$environment" <<END
export WORKSPACEFS_STATE_DIR=$WORKSPACEFS_STATE_DIR
export AWS_ENDPOINT_URL_S3=http://127.0.0.1:$4 AWS_DEFAULT_REGION=us-east-1
export AWS_ACCESS_KEY_ID=$access_key AWS_SECRET_ACCESS_KEY=$secret_key
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null no_proxy=127.0.0.1
END
    )
    TMPDIR=$server setsid weed server -dir="$server/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
        -master.port="$1" -volume.port="$2" -filer.port="$3" -s3.port="$4" \
        -master.port.grpc="$5" -volume.port.grpc="$6" -filer.port.grpc="$7" -s3.port.grpc="$8" \
        -master.peers=none -master.telemetry=false -master.volumeSizeLimitMB=256 -volume.max=200 \
        -s3 -s3.config="$server/identities.json" -s3.port.iceberg=0 -s3.port.lance=0 \
        -filer.localSocket="$server/filer.sock" -s3.localSocket="$server/s3.sock" \
        </dev/null >"$server/log" 2>&1 &
    echo $! >"$server/pid"
    shift 4
    printf '/tmp/seaweedfs-%s\n' "master-grpc-$1.sock" "volume-grpc-$2.sock" "filer-grpc-$3.sock" \
        "s3-grpc-$4.sock" >"$server/sockets"
    . "$environment"
    tries=0
    until make_bucket 2>"$server/last-try"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 60 ] || ! server_pid >/dev/null; then
            tail -n 5 "$server/log" "$server/last-try" >&2
            echo "the S3 server does not start; its log is $server/log" >&2
            exit 1
        fi
        sleep 0.5
    done
}

# Once something can be stored in the bucket, the server is ready.
make_bucket() {
    python -c 'import boto3
s3 = boto3.client("s3")
if not s3.list_buckets()["Buckets"]:
    s3.create_bucket(Bucket="workspaces")
s3.put_object(Bucket="workspaces", Key="ready", Body=b"")'
}

random_hex() { od -An -tx1 -N"$1" /dev/urandom | tr -d ' \n'; }

free_ports() {
    python -c 'import socket, sys
bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in bound))' "$1"
}

# Prints the server's process id if that process is still the server: ids are used again.
server_pid() {
    [ -e "$server/pid" ] || return 1
    pid=$(cat "$server/pid")
    tr '\0' '\n' 2>/dev/null <"/proc/${pid:-none}/cmdline" | grep -qxF -e "-dir=$server/data" &&
        echo "$pid"
} 2>/dev/null

stop_server() {
    while pid=$(server_pid); do
        kill -KILL "$pid" # all that it keeps goes with it
        sleep 0.1
    done
    # SeaweedFS 4.48 puts these beside, whatever TMPDIR says, and leaves them.
    [ ! -e "$server/sockets" ] || xargs rm -f <"$server/sockets"
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
in_other() { (cd "$other" && "$@"); }
count_files() { find "$1" -xdev -type f | wc -l; }
append() { echo "$2" >>"$work/$1"; }

if [ "${1:-}" = --remove ]; then
    remove
    exit 0
fi
case ${STORE:=file} in
file | s3) ;;
*) echo "STORE is file or s3, not $STORE" >&2; exit 2 ;;
esac

remove
mkdir -p "$work" "$other"
chmod 700 "$demo"
echo "~demo stands for $demo"

if [ "$STORE" = s3 ]; then
    # Whatever leads to stores of yours must not lead the demo there.
    for name in $(env | sed -n 's/^\(AWS_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
    store=s3://workspaces/demo
    start_server
    echo "an S3 server listens at $AWS_ENDPOINT_URL_S3; its keys are in ~demo/env.sh"
    step "A workspace is a prefix in a bucket, with everything ever committed." \
        workspacefs init "$store"
else
    store=$demo/store
    step "A workspace is a directory with everything ever committed." \
        workspacefs init "$store"
fi
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

step "Another machine, with nothing but the store: a second mount, a state directory of its own." \
    workspacefs mount "$store" "$other" --session second --state-dir "$state_elsewhere"
step "It has what was committed." cat "$other/notes.txt"
step "And yesterday is still there." workspacefs ls "$store@main~1" workspacefs
if [ "$STORE" = s3 ]; then
    lines=4 step "Names came with the mount. Files come when they are read, and stay in a cache." \
        in_other grep -rl "def main" --include=*.py .
    lines=30 step "What did that take?" workspacefs stats "$other" --state-dir "$state_elsewhere"
    step "And on its disk?" workspacefs cache stats --state-dir "$state_elsewhere"
fi
step "Take the second mount away." \
    workspacefs umount "$other" --state-dir "$state_elsewhere"
workspacefs supervisor stop --state-dir "$state_elsewhere" >/dev/null

cat <<END

Yours to play with: $work

    export PATH=$repository/.venv/bin:\$PATH
END
[ "$STORE" != s3 ] || cat <<END
    . $environment    # the server, its keys and the state directory: for commands outside the mount
END
cat <<END
    cd $work    # work as in any directory
    workspacefs status
    workspacefs commit -m "why"

Remove it and all its data with: $repository/quickstart.sh --remove
END
