#!/bin/sh
# Gives a carrier's interface a routing table of its own; see docs/operations.md, section 7.
#
#     polyrail-routes.sh INTERFACE TABLE ROUTER...
#
#     polyrail-routes.sh wwan0 1001 192.168.8.1 fe80::1
#     polyrail-routes.sh wwan1 1002 192.168.8.1
#
# Run it as root when the interface has got an address and its router, as from a hook of the DHCP
# client. TABLE is a number for each interface: of its table, of the preference of its rule, and of
# the metric of its default route for the machine's own traffic. Repeating is harmless.
set -eu
interface=$1 table=$2
shift 2
for router in "$@"; do
    case $router in
    *:*) family=-6 ;;
    *) family=-4 ;;
    esac
    # `onlink`: some modems hand out a router outside their prefix.
    ip "$family" route replace default via "$router" dev "$interface" table "$table" onlink
    ip "$family" route replace default via "$router" dev "$interface" metric "$table" onlink
    # The gateway's sockets are bound to the interface, and so use its table.
    while ip "$family" rule del priority "$table" 2>/dev/null; do :; done
    ip "$family" rule add priority "$table" oif "$interface" lookup "$table"
done
