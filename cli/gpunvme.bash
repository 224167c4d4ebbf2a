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
        store) echo "--memory --length --offset --unregistered --json --help --usage" ;;
        topology) echo "--svg --xml --json --help --usage" ;;
        sim) echo "--listen --trust --size --json --help --usage" ;;
        stripe) echo "--unit --force --json --help --usage" ;;
        weights)
            echo "--glob --memory --slice --checksum --manifest --write --dtype --rounds --json --quiet" \
                "--help --usage"
            ;;
        data)
            echo "--format --record --header --sequence --overlap --token --member --output --list --checksums --memory" \
                "--batch --depth --shuffle --seed --time --verify --cast --json --quiet --help --usage"
            ;;
        tier)
            echo "--set --hot --warm --cold --hot-at --warm-at --half-life --rate --watch --interval" \
                "--output --tier --to --pin --read-all --verbose --quiet --json --help --usage"
            ;;
        ops)
            echo "--variant --without --shape --shapes --device --dtype --activation --no-preact --batch" \
                "--heads --page --cache-dtype --values --causal --window --softcap --lengths --kind --threads --rounds --time --burst --no-peaks --cpu-time --seed --json --help --usage"
            ;;
    esac
}

# Words that an option takes; nothing where it takes a number or a file.
_gpunvme_values() {
    case $1 in
        --pattern | -p) echo "random sequential" ;;
        --memory) echo "host pinned gpu" ;;
        --format) echo "records tokens npy safetensors tar mds index list" ;;
        --shuffle) echo "epoch blocks none" ;;
        --cast) echo "i32 i64 f16 bf16 f32" ;;
        --tier | --to) echo "hot warm cold" ;;
        --device) echo "cpu cuda" ;;
        --dtype) echo "f32 tf32 f16 bf16 f8_e4m3 e4m3 e4m3-row e4m3-block e4m3-fast e5m2 e5m2-e4m3" ;;
        --cache-dtype) echo "e4m3" ;;
        --activation) echo "none relu gelu gelu_tanh silu" ;;
        --variant) echo "all naive blocked online packed avx2 avx512 openmp" ;;
        --profile) gpunvme sim profiles 2>/dev/null | grep -E '^[a-z]' ;;
        --uri) echo "sim:" ;;
        --kernels) echo "sim: sim:engine=gpu" ;;
    esac
}

_gpunvme() {
    local commands="quickstart info identify dump-bar0 read write bench store stripe topology check-p2p sim weights data tier ops help version"
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
    elif [[ $command == stripe && COMP_CWORD -eq 2 ]]; then
        words="create show"
    elif [[ $command == weights && COMP_CWORD -eq 2 ]]; then
        words="ls load verify"
    elif [[ $command == data && COMP_CWORD -eq 2 ]]; then
        words="stat index verify bench"
    elif [[ $command == tier && COMP_CWORD -eq 2 ]]; then
        words="create status ls stat get put rm migrate scrub rebuild configure serve"
    elif [[ $command == ops && COMP_CWORD -eq 2 ]]; then
        words="list bench check"
    elif [[ $command == ops && ${COMP_WORDS[2]} =~ ^(list|bench|check)$ && $before != --* ]]; then
        words="matmul linear linear-forward linear-backward attention attention-backward attention-paged kv-append norm-forward norm-backward cross-entropy adamw grad-norm embedding-forward embedding-backward swiglu-forward swiglu-backward rope moe-forward moe-backward"
    else
        words=$(_gpunvme_values "$before")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -o default -F _gpunvme gpunvme
