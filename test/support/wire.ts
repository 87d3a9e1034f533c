// Interface between the test client of the behaviour tests and the wire formats it can speak, and
// the native format.

import { decodeServerFrame, type ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL } from "../../src/protocol/native/ops.ts";
import type { Operation } from "../../src/protocol/protocol.ts";

/** Wire format of one connection: encodes its operations and decodes the server's frames. */
export interface Wire {
  readonly subprotocol: string;
  encode(operation: Operation): Uint8Array | string;
  /** Throws if a server must not send such data. */
  decode(data: Buffer, isBinary: boolean): ServerFrame;
}

/** Returns the native wire format of one connection of the user `uid`. */
export function nativeWire(uid: string): Wire {
  return {
    subprotocol: NATIVE_SUBPROTOCOL,
    encode: encodeOperation,
    decode(data, isBinary) {
      if (!isBinary) throw new Error("the server sent a text frame");
      return decodeServerFrame(data, uid);
    },
  };
}
