# SPDX-License-Identifier: BSD-3-Clause
#
# Completion of gpunvme for bash. It knows the commands, their options and the words that options
# take; files it leaves to bash.

# Options of a command, as its --help has them.
_gpunvme_options() {
    case $1 in
        quickstart)
            echo "--size --image --keep --uri --profile --depth --block-size --nsid --force" \
                "--json --quiet --help --usage"
            ;;
        info) echo "--kernels --json --help --usage" ;;
        identify) echo "--nsid --json --help --usage" ;;
        dump-bar0) echo "--up --json --help --usage" ;;
        read)
            echo "--output --file --offset --length --nsid --depth --block-size --timeout" \
                "--interrupts --json --quiet --help --usage"
            ;;
        write)
            echo "--input --file --fua --force --offset --length --nsid --depth --block-size --timeout" \
                "--interrupts --json --quiet --help --usage"
            ;;
        bench)
            echo "--pattern --block-size --read-share --depth --queues --memory --time --count" \
                "--offset --length --nsid --verify --seed --timeout --force --interrupts" \
                "--json --quiet --help --usage"
            ;;
        check-p2p) echo "--nsid --force-unsafe --json --help --usage" ;;
        topology) echo "--svg --xml --json --help --usage" ;;
        sim) echo "--listen --size --json --help --usage" ;;
    esac
}

# Words that an option takes; nothing where it takes a number or a file.
_gpunvme_values() {
    case $1 in
        --pattern | -p) echo "random sequential" ;;
        --memory) echo "host pinned gpu" ;;
        --profile) gpunvme sim profiles 2>/dev/null | grep -E '^[a-z]' ;;
        --uri) echo "sim:" ;;
    esac
}

_gpunvme() {
    local commands="quickstart info identify dump-bar0 read write bench topology check-p2p sim help version"
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} words=""

    # "--pattern=ran" comes as three words.
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $before == "=" ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if ((COMP_CWORD == 1)); then
        words=$commands
    elif [[ $command == help ]]; then
        words=$commands
    elif [[ $word == -* ]]; then
        words=$(_gpunvme_options "$command")
    elif [[ $command == sim && COMP_CWORD -eq 2 ]]; then
        words="profiles image check --listen"
    else
        words=$(_gpunvme_values "$before")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -o default -F _gpunvme gpunvme
