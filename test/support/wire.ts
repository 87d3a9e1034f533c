// How a test client writes its requests and reads what the server sends: the seam between the
// client of the behaviour tests and the wire formats it can speak.

import { decodeServerFrame, type ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL } from "../../src/protocol/native/ops.ts";
import type { Operation } from "../../src/protocol/protocol.ts";

/** One connection's. */
export interface Wire {
  readonly subprotocol: string;
  encode(operation: Operation): Uint8Array | string;
  /** Throws for what a server should not send. */
  decode(data: Buffer, isBinary: boolean): ServerFrame;
}

/** `uid`: of the client. */
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
