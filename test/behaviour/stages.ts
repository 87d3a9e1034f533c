// Where events are played before viewers: a channel of two members, one of them the producer's uid,
// and a stranger, all online. State: that of the world it stands on.

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

/** What differs from alice's event of the stage's channel. */
export interface PostOptions {
  /** Fields of the body that win. */
  readonly body?: object;
  /** Fields of `event` that win. */
  readonly event?: object;
  /** With its question mark. */
  readonly query?: string;
}

export interface Stage {
  readonly kind: Kind;
  /** The channel as its producer names it. */
  readonly channel: ChannelRef;
  /** The producer's uid, online. */
  readonly alice: NativeClient;
  readonly bob: NativeClient;
  /** Online, in another channel. */
  readonly eve: NativeClient;
  /** As a user names it; a client by its uid. */
  channelOf(uid: string): ChannelRef;
  /** Posts one event of alice's stream `no`. */
  post(no: string, type: string, data?: string, options?: PostOptions): Promise<ApiResponse>;
  start(no: string, options?: PostOptions): Promise<ApiResponse>;
  say(no: string, text: string, options?: PostOptions): Promise<ApiResponse>;
  end(no: string, options?: PostOptions): Promise<ApiResponse>;
  /** The stream as `client` sees it, once everything posted before has come. */
  seen(client: NativeClient, no: string): Promise<StreamView>;
  /** `type data` of each event that came to the client, in order. */
  told(client: NativeClient): Promise<readonly string[]>;
  /** Another device of a member, or of anybody. */
  join(uid: string, flag?: DeviceFlag): Promise<NativeClient>;
  /** `GET /stream` as a backend asks it. */
  read(no: string): Promise<ApiResponse>;
}

export async function startStage(t: Test, world: World, kind: Kind = "group"): Promise<Stage> {
  const names = ["alice", "bob", "eve"].map((word) => world.name(word));
  const [alice = "", bob = "", eve = ""] = names;
  const channel = kind === "group" ? await world.newGroup([alice, bob]) : person(bob);
  const [first, second, stranger] = await Promise.all([
    world.join(t, alice),
    world.join(t, bob),
    world.join(t, eve),
  ]);
  const post: Stage["post"] = (no, type, data = "", options = {}) =>
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
    say: (no, text, options) => post(no, CONTENT, text, options),
    end: (no, options) => post(no, END, "", options),

    async seen(client, no) {
      await client.ping();
      const view = client.view(channelOf(client.uid), no);
      if (view === undefined) throw new Error(`${client.uid} heard nothing`);
      return view;
    },

    async told(client) {
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

/** `<status> <state of the stream>`; `200 -` without a stream, `400 <code>` when refused. */
export function outcome({ status, body }: ApiResponse): string {
  return `${status} ${body.code ?? body.stream?.state ?? "-"}`;
}

export async function outcomeOf(answer: Promise<ApiResponse>): Promise<string> {
  return outcome(await answer);
}
