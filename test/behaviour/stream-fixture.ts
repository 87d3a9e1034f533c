// A channel in which events are tested, with two members and a stranger, all of them online. Events
// are posted with the uid of alice, who is one of the members.

import type { Test } from "tap";
import type { ChannelRef, DeviceFlag } from "../../src/broker/model.ts";
import type { ApiResponse } from "../support/broker.ts";
import type { NativeClient } from "../support/native-session.ts";
import type { StreamView } from "../support/stream-view.ts";
import { person, type World, wire } from "./world.ts";

export const START = "___TextMessageStart";
export const CONTENT = "___TextMessageContent";
export const END = "___TextMessageEnd";

export const KINDS = ["group", "personal"] as const;
export type Kind = (typeof KINDS)[number];

/** Differences from alice's default event. */
export interface PostOptions {
  /** Fields of the body that replace the defaults. */
  readonly body?: object;
  /** Fields of `event` that replace the defaults. */
  readonly event?: object;
  /** Query string with its question mark. */
  readonly query?: string;
}

export interface StreamFixture {
  readonly kind: Kind;
  /** The channel as its producer addresses it. */
  readonly channel: ChannelRef;
  /** Client of the producer's uid. */
  readonly alice: NativeClient;
  readonly bob: NativeClient;
  /** Client of a user outside the channel. */
  readonly eve: NativeClient;
  /** Returns the channel as a user addresses it. */
  channelOf(uid: string): ChannelRef;
  /** Posts an event of alice's stream with the client message number `no`. */
  post(no: string, type: string, data?: string, options?: PostOptions): Promise<ApiResponse>;
  start(no: string, options?: PostOptions): Promise<ApiResponse>;
  addText(no: string, text: string, options?: PostOptions): Promise<ApiResponse>;
  end(no: string, options?: PostOptions): Promise<ApiResponse>;
  /** Returns the client's view of the stream after all events posted so far have arrived. */
  viewOf(client: NativeClient, no: string): Promise<StreamView>;
  /** Returns `<type> <data>` of each event that was pushed to the client, in order. */
  eventsOf(client: NativeClient): Promise<readonly string[]>;
  /** Connects another device of a user. */
  join(uid: string, flag?: DeviceFlag): Promise<NativeClient>;
  /** Calls `GET /stream` as a backend. */
  read(no: string): Promise<ApiResponse>;
}

export async function createFixture(
  t: Test,
  world: World,
  kind: Kind = "group",
): Promise<StreamFixture> {
  const names = ["alice", "bob", "eve"].map((name) => world.name(name));
  const [alice = "", bob = "", eve = ""] = names;
  const channel = kind === "group" ? await world.newGroup([alice, bob]) : person(bob);
  const [first, second, stranger] = await Promise.all([
    world.join(t, alice),
    world.join(t, bob),
    world.join(t, eve),
  ]);
  const post: StreamFixture["post"] = (no, type, data = "", options = {}) =>
    world.call(`/event${options.query ?? ""}`, {
      ...{ client_msg_no: no, from_uid: alice, ...wire(channel) },
      event: { type, data, ...options.event },
      ...options.body,
    });
  const channelOf = (uid: string) => (kind === "group" || uid === alice ? channel : person(alice));
  return {
    ...{ kind, channel, post, channelOf },
    ...{ alice: first, bob: second, eve: stranger },
    start: (no, options) => post(no, START, "", options),
    addText: (no, text, options) => post(no, CONTENT, text, options),
    end: (no, options) => post(no, END, "", options),

    async viewOf(client, no) {
      await client.ping();
      const view = client.view(channelOf(client.uid), no);
      if (view === undefined) throw new Error(`${client.uid} was not pushed the stream`);
      return view;
    },

    async eventsOf(client) {
      await client.ping();
      return client.events.map(({ type, data }) => `${type} ${data}`);
    },

    async join(uid, flag = 1) {
      return world.join(t, uid, { flag });
    },

    read: (no) => {
      const { id, type } = channel;
      const uid = kind === "group" ? "" : `?uid=${alice}`;
      return world.call(`/stream/${type}/${id}/${no}${uid}`);
    },
  };
}

/**
 * Returns `<status> <state of the stream>`, `200 -` if there is no stream, or `<status> <code>`
 * if the event was refused.
 */
export function outcome({ status, body }: ApiResponse): string {
  return `${status} ${body.code ?? body.stream?.state ?? "-"}`;
}

export async function outcomeOf(response: Promise<ApiResponse>): Promise<string> {
  return outcome(await response);
}
