#!/bin/sh
# Applies a DHCP lease to a carrier's interface: the script of busybox's udhcpc, which
# polyrail-wan@.service runs in the gateway's network namespace. See docs/operations.md, section 8.
# shellcheck disable=SC2154 # udhcpc sets interface, ip, mask and router.
set -eu
case ${1:-} in
deconfig)
    ip -4 addr flush dev "$interface"
    ip link set "$interface" up
    ;;
bound | renew)
    # Another lease may have another address.
    ip -4 -o addr show dev "$interface" | grep -qF " $ip/$mask " || {
        ip -4 addr flush dev "$interface"
        ip -4 addr add "$ip/$mask" dev "$interface"
    }
    number=$(ip -o link show dev "$interface" | cut -d: -f1)
    # `router` may list several.
    "$(dirname "$0")/polyrail-routes.sh" "$interface" $((1000 + number)) "${router%% *}"
    ;;
esac
