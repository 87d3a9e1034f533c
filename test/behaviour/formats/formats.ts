// Wire formats that the scenarios run over.

import type { Format } from "./format.ts";
import { EXTENDED_JSONRPC, WUKONGIM_JSONRPC } from "./jsonrpc.ts";
import { NATIVE } from "./native.ts";
import { WKPROTO } from "./wkproto.ts";

export const FORMATS: readonly Format[] = [NATIVE, WUKONGIM_JSONRPC, EXTENDED_JSONRPC, WKPROTO];
