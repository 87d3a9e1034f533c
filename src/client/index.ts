// `jindou/client`: the client SDK for browsers and Node. Its public interface is what this file
// exports; docs/sdk.md is its guide.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import type { Client } from "./api.ts";
import { createClient } from "./client.ts";
import { type ConnectOptions, settle } from "./options.ts";

export type {
  ChannelRef,
  ChannelType,
  DeviceFlag,
  Presence,
  StreamNote,
  StreamState,
} from "../broker/model.ts";
export type * from "./api.ts";
export { JindouError, type JindouErrorCode } from "./errors.ts";
export type { ConnectOptions, Timeouts } from "./options.ts";
export type { SocketConstructor, SocketLike } from "./socket.ts";

/** A client that connects at once and reconnects by itself. Throws `bad_option`, `bad_id`. */
export function connect(options: ConnectOptions): Client {
  return createClient(settle(options));
}

/** The group channel with this id. */
export function group(id: string): ChannelRef {
  return { id, type: GROUP_CHANNEL };
}

/** The conversation with this user. */
export function person(uid: string): ChannelRef {
  return { id: uid, type: PERSON_CHANNEL };
}
