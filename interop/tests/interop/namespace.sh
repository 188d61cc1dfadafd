#!/bin/sh
# The commands of docs/operations.md, section 8, in a machine of its own: a network and a mount
# namespace. $1 is the folder `packaging`. It ends with 0 if the gateway's namespace works.
set -eu
packaging=$1
mount --make-rprivate /
mount -t tmpfs none /run
mkdir /run/netns /run/lib
cp "$packaging"/namespace/*.sh "$packaging"/examples/routes/*.sh /run/lib
export SETTINGS="$packaging/sysctl.d/60-polyrail.conf"
set -a
# shellcheck source=packaging/namespace/namespace.env
. "$packaging/namespace/namespace.env"
set +a
fails() {
    if "$@"; then
        echo "it succeeds: $*" >&2
        exit 1
    fi
}

# A bridge with a passenger, and two modems, of which one comes later.
ip link set lo up
ip link add "$LAN" type bridge
ip link set "$LAN" up
ip netns add passenger
ip link add port1 type veth peer name eth0 netns passenger
ip link set port1 master "$LAN" up
ip -n passenger addr add 10.9.0.2/24 dev eth0
ip -n passenger link set eth0 up
plug() {
    ip netns add "modem$1"
    ip link add "wwan$1" type veth peer name usb0 netns "modem$1"
    ip -n "modem$1" addr add 192.168.8.1/24 dev usb0
    ip -n "modem$1" link set usb0 up
}
plug 0

/run/lib/polyrail-namespace.sh up
plug 1
for interface in wwan0 wwan1; do
    /run/lib/polyrail-namespace.sh move "$interface"
    # As udhcpc calls it, for two leases.
    for event in deconfig bound renew; do
        interface=$interface ip=192.168.8.100 mask=24 router="192.168.8.1 192.168.8.2" \
            ip netns exec polyrail /run/lib/polyrail-lease.sh "$event"
    done
done
for interface in wwan0 wwan1; do
    ip -n polyrail route get 192.0.2.1 oif "$interface" | grep -F "via 192.168.8.1 dev $interface "
    ip netns exec polyrail busybox ping -c 1 -W 3 -I "$interface" 192.168.8.1
done
ip netns exec passenger busybox ping -c 1 -W 3 10.9.0.1
[ "$(ip netns exec polyrail cat /proc/sys/net/ipv4/tcp_slow_start_after_idle)" = 0 ]
[ "$(ip netns exec polyrail cat /proc/sys/net/ipv4/conf/all/rp_filter)" = 2 ]

# Everything returns to the machine.
/run/lib/polyrail-namespace.sh down
ip link show wwan0
ip link show wwan1
fails ip link show polyrail
fails ip netns exec polyrail true
# A start that fails leaves nothing.
fails env LAN=missing /run/lib/polyrail-namespace.sh up
fails ip netns exec polyrail true
ip link show wwan0
