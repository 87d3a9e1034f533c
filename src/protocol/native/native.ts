// The native protocol as the server opens it. State: one codec for all connections, with its slabs; nothing per connection.

import { type Codec, FrameError, type Protocol } from "../protocol.ts";
import { createDecoder, decodeRef } from "./decode.ts";
import type { NativeLimits } from "./decode-fields.ts";
import { createEncoder } from "./encode.ts";
import { NATIVE_SUBPROTOCOL } from "./ops.ts";

export { NATIVE_SUBPROTOCOL };

/** Sessions of it share every encoded push. */
export function createNativeProtocol(limits: NativeLimits): Protocol {
  const decode = createDecoder(limits);
  const encoder = createEncoder();
  const codec: Codec = {
    format: NATIVE_SUBPROTOCOL,
    decode(data, isText) {
      requireBinary(isText);
      return [decode(data)];
    },
    refOf(data, isText) {
      requireBinary(isText);
      return decodeRef(data);
    },
    encodeReply: encoder.reply,
    encodePush: encoder.push,
  };
  return { name: NATIVE_SUBPROTOCOL, open: () => codec };
}

function requireBinary(isText: boolean): void {
  if (isText)
    throw new FrameError(
      "malformed_frame",
      0,
      "Frames must be binary MessagePack, this one is text",
      true,
    );
}
