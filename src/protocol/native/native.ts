// The native protocol, server side. All connections share one codec, because it keeps no state per
// connection.

import { withoutStack } from "../../lib/without-stack.ts";
import {
  type Admit,
  type Codec,
  FrameError,
  largeFrameMessage,
  type Operation,
  type Protocol,
  type Push,
  type Reply,
  type RequestLimits,
} from "../protocol.ts";
import { createConnectDecoder, createDecoder, decodeRef } from "./decode.ts";
import { createEncoder } from "./encode.ts";
import { NATIVE_SUBPROTOCOL, NATIVE_VERSION } from "./ops.ts";

export { NATIVE_SUBPROTOCOL };

interface NativeCodec extends Codec {
  decode(data: Uint8Array, isText: boolean, admit?: Admit): readonly Operation[];
  encodeReply(reply: Reply): Uint8Array;
  encodePush(push: Push): Uint8Array;
}

interface NativeProtocol extends Protocol {
  open(): NativeCodec;
}

export function createNativeProtocol(limits: RequestLimits): NativeProtocol {
  const decode = createDecoder(limits);
  const decodeConnect = createConnectDecoder(limits);
  const encoder = createEncoder();
  const codec: NativeCodec = {
    format: NATIVE_SUBPROTOCOL,
    isPrivate: false,
    version: NATIVE_VERSION,
    acknowledges: false, // clients resume channels instead
    splitsRequests: false,
    decode(data, isText, admit = () => true) {
      requireBinary(isText);
      if (!admit(data.length, 0)) throw refusal(data);
      return [decode(data)];
    },
    decodeConnect(data, isText) {
      requireBinary(isText);
      return decodeConnect(data);
    },
    refuseLarge: (data, maxFrameBytes) =>
      new FrameError("too_large", decodeRef(data), largeFrameMessage(maxFrameBytes)),
    encodeReply: encoder.reply,
    encodePush: encoder.push,
  };
  return {
    name: NATIVE_SUBPROTOCOL,
    speaks: () => true, // this protocol is the fallback, and its errors name the expected format
    open: () => codec,
  };
}

function refusal(data: Uint8Array): FrameError {
  const ref = decodeRef(data);
  return withoutStack(() => new FrameError("rate_limited", ref, ""));
}

function requireBinary(isText: boolean): void {
  if (isText)
    throw new FrameError(
      "malformed_frame",
      0,
      "The frame is text, but frames must be binary MessagePack",
      true,
    );
}
