// Wire formats that the scenarios run over.

import type { Format } from "./format.ts";
import { EXTENDED_JSONRPC, WUKONGIM_JSONRPC } from "./jsonrpc.ts";
import { NATIVE } from "./native.ts";
import { WKPROTO, WKPROTO_TCP } from "./wkproto.ts";

/** Brokers need the settings `TCP_LISTENER`. */
export const FORMATS: readonly Format[] = [
  ...[NATIVE, WUKONGIM_JSONRPC, EXTENDED_JSONRPC],
  ...[WKPROTO, WKPROTO_TCP],
];
