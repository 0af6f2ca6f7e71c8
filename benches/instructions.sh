#!/bin/sh
# Counts the instructions of one frame and of one request, ours and the peers', under valgrind.
#
#     benches/instructions.sh
#
# Each is run twice, once for a few times and once for many, so that the start of the program, the
# same in both, falls out of the difference. Counts do not depend on how busy the machine is.
set -eu
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    echo "This needs valgrind, which is not installed. (Debian: apt-get install valgrind)" >&2
    exit 1
fi

binary=$(cargo bench --quiet --bench instructions --no-run --message-format=json |
    sed -n 's/.*"name":"instructions".*"executable":"\([^"]*\)".*/\1/p')

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$binary" "$@" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

tab=$(printf '\t')
printf '%-20s %-22s %12s\n' "what" "who" "instructions"
"$binary" list | while IFS=$tab read -r what who units; do
    few=$(count "$what" "$who" 100)
    many=$(count "$what" "$who" 600)
    printf '%-20s %-22s %12d\n' "$what" "$who" $(((many - few) / 500 / units))
done
