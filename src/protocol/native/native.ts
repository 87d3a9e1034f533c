// The native protocol on the server. State: one codec with its slabs for all connections; nothing
// per connection.

import { type Codec, FrameError, type Protocol } from "../protocol.ts";
import { createDecoder, decodeRef, type NativeLimits } from "./decode.ts";
import { createEncoder } from "./encode.ts";
import { NATIVE_SUBPROTOCOL } from "./ops.ts";

export { NATIVE_SUBPROTOCOL };

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
