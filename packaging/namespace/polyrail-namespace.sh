#!/bin/sh
# Makes or removes the gateway's network namespace; see docs/operations.md, section 8.
#
#     polyrail-namespace.sh up|down
#     polyrail-namespace.sh move INTERFACE
#
# polyrail-namespace.service and polyrail-wan@.service run it as root with the variables of
# /etc/polyrail/namespace.env.
set -eu
: "${NAMESPACE:=polyrail}" "${LAN:?}" "${LAN_ADDRESSES:?}" "${WAN:?}"
: "${SETTINGS:=/usr/lib/sysctl.d/60-polyrail.conf}"

up() {
    ip netns add "$NAMESPACE"
    # Kernels lack some of the settings.
    ip netns exec "$NAMESPACE" sysctl -q -e -p "$SETTINGS" || true
    ip -n "$NAMESPACE" link set lo up
    # The machine's end of the pair is a port of the LAN's bridge; the gateway's is `lan0`.
    ip link add name "$NAMESPACE" type veth peer name lan0 netns "$NAMESPACE"
    ip link set "$NAMESPACE" master "$LAN" up
    for address in $LAN_ADDRESSES; do
        ip -n "$NAMESPACE" addr add "$address" dev lan0
    done
    ip -n "$NAMESPACE" link set lan0 up
    for interface in $WAN; do
        move "$interface" || echo "$interface is missing; it may come later" >&2
    done
}

# Moves a carrier's interface to the namespace. It loses its addresses and routes.
move() {
    if ! ip -n "$NAMESPACE" link show dev "$1" >/dev/null 2>&1; then
        ip link set "$1" netns "$NAMESPACE" || return 1
    fi
    ip -n "$NAMESPACE" link set "$1" up
}

# Best effort, so that nothing is left after a failed `up`.
down() {
    for interface in $WAN; do
        ip -n "$NAMESPACE" link set "$interface" netns $$ || true
    done
    # The end in the namespace goes with the other one.
    ip link del "$NAMESPACE" || true
    ip netns del "$NAMESPACE"
}

case ${1:-} in
up)
    # systemd does not run `down` after a failed start.
    trap down EXIT
    up
    trap - EXIT
    ;;
down) down ;;
move) move "${2:?}" ;;
*)
    echo "usage: $0 up | down | move INTERFACE" >&2
    exit 2
    ;;
esac
