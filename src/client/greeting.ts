// The first frame of a connection: who connects, and what it has of which channel. Pure.

import { encodeOperation } from "../protocol/native/client-encode.ts";
import { NATIVE_VERSION } from "../protocol/native/ops.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { Settings } from "./options.ts";

/** What a server takes unless it is configured otherwise. */
export const MAX_RESUME_CHANNELS = 1000;
export const MAX_FRAME_BYTES = 128 * 1024;
/** Of the largest frame; the rest is for the token and the names. */
const RESUME_SHARE = 0.75;
/** The most a record takes beside its channel's id. */
const RECORD_BYTES = 25;

export interface GreetingParts {
  readonly token: string;
  /** The session it continues: the server's name for it, or before there is one a name of our own for the login. */
  readonly session: string;
  /** Most recently used first; those that do not fit are left out. */
  readonly points: readonly ResumePoint[];
  /** The largest frame that the server takes. */
  readonly maxFrameBytes: number;
}

export interface Greeting {
  readonly frame: Uint8Array;
  /** Channels it names. */
  readonly resumed: number;
}

export function greeting(
  settings: Settings,
  { token, session, points, maxFrameBytes }: GreetingParts,
): Greeting {
  const resume = fitting(points, maxFrameBytes * RESUME_SHARE);
  const frame = encodeOperation({
    kind: "connect",
    ref: 1,
    version: NATIVE_VERSION,
    uid: settings.uid,
    token,
    flag: settings.deviceFlag,
    deviceId: settings.deviceId,
    level: undefined,
    resume,
    session,
  });
  return { frame, resumed: resume.length };
}

function fitting(
  points: readonly ResumePoint[],
  maxBytes: number,
): readonly ResumePoint[] {
  const encoder = new TextEncoder();
  let bytes = 0;
  return points.filter(({ channel }) => {
    bytes += RECORD_BYTES + encoder.encode(channel.id).length;
    return bytes <= maxBytes;
  });
}
