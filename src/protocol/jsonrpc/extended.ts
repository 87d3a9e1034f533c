// The extended form of JSON-RPC, which offers all features of the native protocol.

import { METHODS } from "./decode.ts";
import { encodeExtended, resultOf } from "./encode.ts";
import type { View } from "./view.ts";

/** Id of an error response to a request whose id is unknown (JSON-RPC 2.0, section 5). */
const UNKNOWN_ID = "null";

export const EXTENDED: View = {
  format: "jsonrpc",
  acknowledges: false, // clients resume channels instead
  methods: METHODS,
  unknownId: UNKNOWN_ID,
  remember: () => undefined,
  isResult: () => false,
  result: (reply) => (reply.kind === "error" ? undefined : resultOf(reply)),
  encode: encodeExtended,
};
