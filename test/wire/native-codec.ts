// Decoder and limits of the native protocol for the wire tests.

import { createDecoder } from "../../src/protocol/native/decode.ts";
import { FrameError, type Operation } from "../../src/protocol/protocol.ts";

export const LIMITS = {
  maxIdLength: 128,
  maxPayloadBytes: 4096,
  maxResumePoints: 20,
  maxPresenceUids: 20,
  maxWatchedUids: 20,
  maxCommandAcks: 20,
} as const;

export const decodeClientFrame: (bytes: Uint8Array) => Operation = createDecoder(LIMITS);

export const fromHex = (hex: string): Uint8Array => new Uint8Array(Buffer.from(hex, "hex"));

export const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");

/**
 * Returns the FrameError that `run` throws, or `undefined` if it throws nothing. Rethrows any other
 * error.
 */
export function frameErrorOf(run: () => unknown): FrameError | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    if (error instanceof FrameError) return error;
    throw error;
  }
}
