/* version: what this program is. */
#include "common.h"

int cli_version(const cli_settings *settings) {
    (void)settings;
    const char *fast = stk_float_fast_name();
    return cli_print("stoker %s (ABI %u)\n--float fast: %s\n", stk_version(), stk_abi_version(),
                     fast ? fast : "not in this build");
}
