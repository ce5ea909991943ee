/* version: what this program is. */
#include "common.h"

int cli_version(const cli_settings *settings) {
    (void)settings;
    return cli_print("stoker %s (ABI %u)\n", stk_version(), stk_abi_version());
}
