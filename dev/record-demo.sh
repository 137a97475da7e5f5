#!/bin/sh
# Record both demos in a terminal of 118 columns, pauses shortened, as SVG animations. From the root of the checkout.
set -eu
# A terminal is recorded: without one, as in a job of CI, `script` makes one.
[ -t 0 ] || exec script -qec "$0" /dev/null
record() { # file command
    dev/uv.sh tool run --quiet --from termtosvg==1.1.0 --with 'setuptools<81' termtosvg "docs/images/$1" \
        --command "$2" --screen-geometry 118x46 --max-frame-duration 2000 --loop-delay 15000 --template window_frame
    # The template shows bright green and bright red, the verdict, in the colour of the background; and no path of this machine.
    sed -i -e 's/\(\.color10 *{fill: \)[^}]*/\1#a6e22e/' -e 's/\(\.color9 *{fill: \)[^}]*/\1#f92672/' \
        -e "s#$PWD#/home/user#g" "docs/images/$1"
    grep -q "rows lost.*0, rows doubled" "docs/images/$1" || { echo "docs/images/$1 does not show the end of the demo"; exit 1; }
}
record demo.svg "make demo"
record demo-upgrade.svg "make demo-upgrade"
