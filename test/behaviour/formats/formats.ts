// Wire formats that the scenarios run over.

import { TESTS_ONE_PROCESS } from "../../support/driver.ts";
import type { Format } from "./format.ts";
import { EXTENDED_JSONRPC, WUKONGIM_JSONRPC } from "./jsonrpc.ts";
import { NATIVE } from "./native.ts";
import { WKPROTO, WKPROTO_TCP } from "./wkproto.ts";

/**
 * Formats of the scenarios. Brokers need the settings `TCP_LISTENER`. On three nodes the list
 * contains only one native format and one of WuKongIM's. The other formats differ from these two
 * only in their frames, which other nodes do not see.
 */
export const FORMATS: readonly Format[] = TESTS_ONE_PROCESS
  ? [NATIVE, WUKONGIM_JSONRPC, EXTENDED_JSONRPC, WKPROTO, WKPROTO_TCP]
  : [NATIVE, WKPROTO];
