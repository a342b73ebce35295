/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One for each cmd_*.c. */
#include "client/cli/cli.h"

extern const struct cli_command cli_cmd_run, cli_cmd_chat, cli_cmd_fim, cli_cmd_models, cli_cmd_load, cli_cmd_unload, cli_cmd_ps,
        cli_cmd_status, cli_cmd_metrics, cli_cmd_doctor, cli_cmd_inspect, cli_cmd_calibrate, cli_cmd_tokenize, cli_cmd_detokenize, cli_cmd_embed, cli_cmd_completion, cli_cmd_version;
