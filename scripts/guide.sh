#!/usr/bin/env bash
# Follows docs/operations.md, section 1, literally: machines in containers that run systemd, the
# packages of target/debian, a user behind the train who downloads a file.
#
# Each block of commands runs on the machine that its step names in bold. Only `scp` is replaced,
# by a copy into the other container. Everything is in namespaces of its own and disappears with
# this script. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
guide=$PWD/docs/operations.md packages=$PWD/target/debian
if [[ ${1:-} != inside ]]; then
    if [[ $EUID -ne 0 ]]; then
        echo "SKIP guide: containers need root"
        exit 0
    fi
    folder=$(mktemp -d)
    trap 'rmdir "$folder"' EXIT
    unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside "$folder"
    exit
fi

mount --make-rprivate /
work=$2
mount -t tmpfs tmpfs "$work"
declare -A init=()

say() { echo "guide: $*"; }
fail() {
    say "$*" >&2
    for machine in "${!init[@]}"; do
        [[ $machine == internet ]] && continue
        on "$machine" 'systemctl --no-pager --full --lines 40 status "polyrail-*"' >&2 || true
        tail -n 40 "$work/$machine/console" >&2
    done
    exit 1
}

# A root folder for a machine: this machine's files, and what it writes itself.
root_of() {
    local machine=$1 root=$work/$1/root
    mkdir -p "$work/$machine"/{upper,scratch,root}
    mount -t overlay -o "lowerdir=/,upperdir=$work/$machine/upper,workdir=$work/$machine/scratch" \
        overlay "$root"
    echo "$machine" >"$root/etc/hostname"
    rm -f "$root/etc/machine-id" "$root/etc/resolv.conf"
    touch "$root/etc/machine-id"
    # A server of the name service that the user's device and nothing else asks.
    echo "nameserver $resolver" >"$root/etc/resolv.conf"
    mkdir -p "$root/root"
    cp "$packages"/*.deb "$root/root/"
}

# Boots systemd in a container; `init` has its first process.
boot() {
    local machine=$1 parent
    unshare --pid --fork --mount --uts --ipc --cgroup --net "$BASH" -euc "$inside_container" \
        container "$work/$machine/root" >"$work/$machine/console" 2>&1 &
    parent=$!
    until init[$machine]=$(pgrep -P "$parent") && on "$machine" 'systemctl is-system-running' |
        grep -Eq 'running|degraded'; do
        kill -0 "$parent" || { cat "$work/$machine/console"; fail "$machine does not boot"; }
        [[ $SECONDS -lt 120 ]] || fail "$machine does not finish to boot"
        sleep 0.2
    done 2>/dev/null
}

# shellcheck disable=SC2016 # for the shell inside the container
inside_container='
root=$1
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" && mkdir "$root/sys/fs/cgroup/systemd" &&
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"; then :
else
    umount "$root/sys/fs/cgroup"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/old"
cd "$root"
pivot_root . run/old
umount -l /run/old
exec env -i container=polyrail PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=console multi-user.target
'

# Runs commands on a machine, as its root.
on() {
    local machine=$1 commands=$2
    local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    local clean=(env -i HOME=/root "PATH=$path")
    clean+=(DEBIAN_FRONTEND=noninteractive bash -euc "cd /root; $commands")
    case $machine in
        computer) chroot "$work/computer/root" "${clean[@]}" ;;
        user) nsenter --net="/proc/$user/ns/net" chroot "$work/user/root" "${clean[@]}" ;;
        *) nsenter -t "${init[$machine]}" -a "${clean[@]}" ;;
    esac
}

# A wire between two machines: MACHINE INTERFACE ADDRESS, twice.
wire() {
    ip link add "$2" type veth peer name wire0
    ip link set wire0 name "$5"
    end "$1" "$2" "$3"
    end "$4" "$5" "$6"
}

end() {
    local pid=${init[$1]:-$user}
    ip link set "$2" netns "$pid"
    nsenter --net="/proc/$pid/ns/net" ip addr add "$3" dev "$2"
    nsenter --net="/proc/$pid/ns/net" ip link set "$2" up
}

# The steps of the guide as lines "MACHINE<tab>COMMANDS", line ends as \x01.
steps() {
    awk '
        /^## 1\. / { inside = 1; next }
        /^## /     { inside = 0 }
        inside && match($0, /^[0-9]+\. \*\*[^*]+\*\*/) {
            machine = $0; sub(/^[0-9]+\. \*\*/, "", machine); sub(/\*\*.*/, "", machine)
        }
        inside && /^ *```sh$/ { block = 1; text = ""; next }
        block && /^ *```$/    { block = 0; print machine "\t" text; next }
        block                 { sub(/^   /, ""); text = text $0 "\x01" }
    ' "$guide"
}

# The names of the guide for machines.
machine_of() {
    case $1 in
        "Your computer") echo computer ;;
        "The server") echo cloud ;;
        "The train") echo train ;;
        "A user's device") echo user ;;
        *) fail "the guide has no machine \"$1\"" ;;
    esac
}

resolver=9.9.9.9 server=203.0.113.10
unshare --net sleep infinity &
user=$!
for machine in cloud train computer user; do root_of "$machine"; done
for machine in computer user; do
    mount -t proc proc "$work/$machine/root/proc"
    mount --rbind /dev "$work/$machine/root/dev"
done
mkdir -p "$work/computer/root/mnt/$server" "$work/computer/root/mnt/train-7"
mount --bind "$work/cloud/root" "$work/computer/root/mnt/$server"
mount --bind "$work/train/root" "$work/computer/root/mnt/train-7"
cat >"$work/computer/root/usr/local/bin/scp" <<'END'
#!/bin/bash
# Copies into the container of the machine: FILES... root@MACHINE:FOLDER
target=${*: -1}
machine=${target#root@}
cp "${@:1:$#-1}" "/mnt/${machine%%:*}${machine#*:}"
END
chmod 755 "$work/computer/root/usr/local/bin/scp"
boot cloud
boot train

# The Internet is the namespace of this script: a web server and a name server.
init[internet]=$$
ip link set lo up
wire internet inet0 198.18.0.1/24 cloud pub0 198.18.0.2/24
ip addr add "$resolver/32" dev lo
ip route add "$server/32" via 198.18.0.2
on cloud "ip addr add $server/32 dev lo; ip link set lo up; ip route add default via 198.18.0.1"
for number in 0 1; do
    wire train "wwan$number" "100.64.$number.2/24" cloud "modem$number" "100.64.$number.1/24"
    on train "ip route add default via 100.64.$number.1 metric $((100 + number))"
done
wire train lan0 10.20.0.1/24 user eth0 10.20.0.10/24
nsenter --net="/proc/$user/ns/net" ip route add default via 10.20.0.1
mkdir "$work/www"
head -c 5000000 /dev/urandom >"$work/www/file"
busybox httpd -f -p "$resolver:80" -h "$work/www" &
dnsmasq --no-daemon --conf-file=/dev/null --no-resolv --no-hosts --bind-interfaces \
    --listen-address="$resolver" --address="/www.example.org/$resolver" 2>"$work/dnsmasq" &

began=$SECONDS
count=0
while IFS=$'\t' read -r name text; do
    machine=$(machine_of "$name")
    text=${text//$'\x01'/$'\n'}
    say "on $machine:"
    printf '%s' "$text" | sed 's/^/    /'
    on "$machine" "$text" || fail "this failed on $machine"
    count=$((count + 1))
done < <(steps)
[[ $count -ge 6 ]] || fail "only $count blocks of commands"
cmp "$work/www/file" "$work/user/root/root/file" || fail "the download differs"
took=$((SECONDS - began))
word=$([[ $took -le 600 ]] && echo ok || echo short)
echo "RESULT guide_first_download $took s goal <= 600 $word"

download='curl --fail --silent --show-error --max-time 30 --output again http://www.example.org/file'
pid='systemctl show --property MainPID --value'
say "an upgrade restarts the daemon, and users continue"
before=$(on train "$pid polyrail-gateway")
on train 'apt-get install --quiet --yes --reinstall ./polyrail-gateway_*.deb' >/dev/null
[[ $(on train "$pid polyrail-gateway") != "$before" ]] || fail "the daemon was not restarted"
on user "for try in 1 2 3 4 5; do $download && exit; sleep 1; done; exit 1" ||
    fail "no download after an upgrade"
say "systemd restarts a daemon that was killed"
on cloud 'systemctl kill --signal KILL polyrail-cloud'
on user "sleep 2; for try in 1 2 3 4 5; do $download && exit; sleep 1; done; exit 1" ||
    fail "no download after a kill"
cmp "$work/www/file" "$work/user/root/root/again" || fail "the download differs"
say "units and manuals are as systemd and man expect"
on train 'systemd-analyze verify polyrail-gateway.service'
on cloud 'systemd-analyze verify polyrail-cloud.service'
on train 'zcat /usr/share/man/man8/polyrail-gateway.8.gz | grep -q "^.TH"'
say "removal leaves the operator's files alone"
# shellcheck disable=SC2016 # for the shell on the train
on train 'apt-get purge --quiet --yes polyrail-gateway polyrail >/dev/null
    [ ! -e /usr/bin/polyrail-gateway ] && [ -e /etc/polyrail/train-7.key ] &&
    ! systemctl is-active --quiet polyrail-gateway && [ -z "$(nft list ruleset)" ]' ||
    fail "purge left something"
say "all steps work"
