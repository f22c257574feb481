#!/bin/sh
# in-namespace.sh COMMAND…: runs a command in a network namespace of its own, where all of 192.0.2.0/24 is on `lo`.
# The API server refuses loopback addresses in EndpointSlices; these it takes, and nothing outside sees them.
# Where that cannot be done the command runs as it is, and TIDEGATE_NETNS_MISSING says in a sentence what is missing.
# Nothing stays: each step becomes the next (exec), and the namespace goes with the last process in it.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
export PATH

without() {
  printf 'target.service is not tested: %s\n' "$1" >&2
  TIDEGATE_NETNS_MISSING="$1"
  export TIDEGATE_NETNS_MISSING
  shift
  exec "$@"
}

has() { command -v "$1" >/dev/null 2>&1; }

has unshare || without 'there is no "unshare"; install the package util-linux.' "$@"

if ! has ip && ! has ifconfig && [ "$(id -u)" = 0 ] && has apt-get; then
  echo 'Installing iproute2 from the system packages: tests of target.service run in a network namespace' >&2
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends iproute2; } \
    >/dev/null || :
fi
if has ip; then
  # On `lo` an address makes its whole network local.
  configure='ip link set lo up && ip address add 192.0.2.1/24 dev lo'
elif has ifconfig; then
  configure='ifconfig lo 127.0.0.1 up && ifconfig lo:1 192.0.2.1 netmask 255.255.255.0'
else
  without 'there is neither "ip" nor "ifconfig"; install the package iproute2.' "$@"
fi

# With a user namespace (-r) nobody needs to be root; where only those are forbidden, root needs none.
why=
for namespaces in -rn -n; do
  if said=$(unshare $namespaces sh -c "$configure" 2>&1); then
    exec unshare $namespaces sh -c "$configure"' && exec "$@"' sh "$@"
  fi
  why="$why${why:+; }unshare $namespaces: $said"
done
without "this machine allows no network namespace ($why). Allow user namespaces (sysctl \
user.max_user_namespaces above 0; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), or run as root with \
CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN)." "$@"
