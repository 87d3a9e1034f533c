// The attacks in docs/SECURITY.md. Each attack starts attackers, which run until they are stopped.
// bench/attacks.ts creates the users, groups and messages that an attack needs.

import { GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { type Attackers, jsonLogin, nativeLogin, volley } from "./attackers.ts";
import { clientFrame, httpRequest, upgradeRequest, wkprotoConnect } from "./frames.ts";

/** Kind of attacker. docs/SECURITY.md lists the promises about each kind. */
type Who = "stranger" | "user" | "backend";

interface Attack {
  readonly who: Who;
  readonly title: string;
  /** Stores on which the attack is measured. On Redis there are two nodes. */
  readonly stores: readonly ("embedded" | "Redis")[];
  /** Wire format of all members of `CROWD` except the attackers. Absent if they are offline. */
  readonly crowd?: "native" | "wkproto";
  start(attackers: Attackers): void;
}

/** Group with many online members and all attackers. */
export const CROWD = "crowd";
/** Group of all attackers, with many messages of 1,000 bytes. */
export const ARCHIVE = "archive";
/** Group of all attackers, with one stream. */
export const SHOW = { group: "show", stream: "stream-1" };
/** Number of further groups to which all attackers belong. */
export const TALKS = 500;
export const TALK = "talk-";
/** User to whom the attackers send commands. */
export const VICTIM = "victim";

const USERS = 10;
/** Number of strangers, each of whom connects from its own network. */
const STRANGERS = 126;
const SILENT = 1000;
/** Number of sockets that one user may have by default. */
const MANY_SOCKETS = 100;
const LARGE_BYTES = 61_440;
const FRAME_BYTES = 131_072;
const WATCHED = 200;

export const attacker = (at: number): string => `attacker-${at}`;
export const ATTACKER_UIDS: readonly string[] = range(USERS).map(attacker);

const address = (network: number): string => `127.1.${network % 250}.1`;
const embedded = ["embedded"] as const;
const both = ["embedded", "Redis"] as const;

export const ATTACKS: Readonly<Record<string, Attack>> = {
  "first-frames": {
    ...{ who: "stranger", stores: embedded },
    title: "first frames of 128 KiB of nested JSON, from 126 networks",
    start(attackers) {
      const frame = clientFrame(`{"params":${"[".repeat(FRAME_BYTES)}`);
      for (const at of range(STRANGERS))
        attackers.stranger(address(at), { upgrade: upgradeRequest(), frame });
    },
  },
  "wkproto-keys": {
    ...{ who: "stranger", stores: embedded },
    title: "WKProto logins with a wrong token, from 126 networks",
    start(attackers) {
      for (const at of range(STRANGERS)) {
        const frame = wkprotoConnect(`nobody-${at}`, "wrong");
        attackers.stranger(address(at), { upgrade: upgradeRequest(), frame });
      }
    },
  },
  guesses: {
    ...{ who: "stranger", stores: both },
    title: "guesses of a user's token on 126 connections of one network",
    start(attackers) {
      for (const _ of range(STRANGERS))
        attackers.stranger(address(1), nativeLogin(VICTIM, "wrong"));
    },
  },
  "api-guesses": {
    ...{ who: "stranger", stores: embedded },
    title: "guesses of an access token of the API on 10 connections",
    start(attackers) {
      const { apiPort } = attackers.target;
      for (const at of range(USERS))
        attackers.call(apiPort, "/user/onlinestatus", {
          ...{ body: "[]", headers: { Authorization: `Bearer wrong-${at}` } },
        });
    },
  },
  silent: {
    ...{ who: "stranger", stores: embedded },
    title: "1,000 connections that are silent, or send half a request",
    start(attackers) {
      const { apiPort } = attackers.target;
      const half = httpRequest("/message/send", "x".repeat(1000)).subarray(0, 500);
      for (const at of range(SILENT)) {
        const port = at % 2 === 0 ? attackers.nextClientPort() : apiPort;
        const first = [half, upgradeRequest(), undefined][at % 3];
        attackers.keepOpen({ port, address: address(at) }, (socket) => {
          if (first !== undefined) socket.write(first);
        });
      }
    },
  },
  garbage: {
    ...{ who: "stranger", stores: embedded },
    title: "bytes that are not a request, and frames that are not valid, on 126 connections",
    start(attackers) {
      const bytes = Buffer.alloc(4096, "\x16\x03\x01 garbage\r\n");
      const frame = clientFrame(bytes);
      for (const at of range(STRANGERS))
        if (at % 2 === 0) attackers.stranger(address(at), { upgrade: upgradeRequest(), frame });
        else
          attackers.keepOpen({ port: attackers.target.apiPort, address: address(at) }, (socket) =>
            socket.write(bytes),
          );
    },
  },
  commands: {
    ...{ who: "user", stores: both, title: "10 users send commands to one user" },
    start: (attackers) => floods(attackers, sendTo(VICTIM, { isCommand: true, isPersonal: true })),
  },
  "group-commands": {
    ...{ who: "user", stores: both, title: "10 users send commands to 2,000 members of a group" },
    start: (attackers) => floods(attackers, sendTo(CROWD, { isCommand: true })),
  },
  crowd: {
    ...{ who: "user", stores: both, crowd: "native" },
    title: "one user sends to a group of 2,000 online members",
    start: (attackers) => floods(attackers, sendTo(CROWD), 1),
  },
  "encrypted-crowd": {
    ...{ who: "user", stores: embedded, crowd: "wkproto" },
    title: "one user sends to a group of 2,000 online members with WKProto",
    start: (attackers) => floods(attackers, sendTo(CROWD), 1),
  },
  payloads: {
    ...{ who: "user", stores: both, title: "10 users send messages of 60 KiB" },
    start: (attackers) => floods(attackers, sendTo(ARCHIVE, { bytes: LARGE_BYTES })),
  },
  "large-crowd": {
    ...{ who: "user", stores: embedded, crowd: "native" },
    title: "one user sends messages of 60 KiB to a group of 2,000 online members",
    start: (attackers) => floods(attackers, sendTo(CROWD, { bytes: LARGE_BYTES }), 1),
  },
  "own-sockets": {
    ...{ who: "user", stores: embedded },
    title: "one user with 99 more sockets sends messages of 60 KiB to itself",
    start(attackers) {
      const [uid = ""] = ATTACKER_UIDS;
      for (const _ of range(MANY_SOCKETS - 1)) attackers.session(nativeLogin(uid), undefined);
      const frame = sendTo(uid, { bytes: LARGE_BYTES, isPersonal: true });
      attackers.session(nativeLogin(uid), () => frame);
    },
  },
  watch: {
    ...{ who: "user", stores: ["Redis"], title: "10 users watch 200 other users each time" },
    start(attackers) {
      for (const uid of ATTACKER_UIDS) {
        let watched = 0;
        attackers.session(nativeLogin(uid), () => {
          watched += WATCHED;
          const uids = range(WATCHED).map((at) => `${uid}-watches-${watched + at}`);
          return operationFrame({ kind: "watch", ref: 7, uids });
        });
      }
    },
  },
  "stream-reads": {
    ...{ who: "user", stores: both, title: "10 viewers read a stream of 60 KB over HTTP" },
    start(attackers) {
      const [port = 0] = attackers.target.clientPorts;
      for (const uid of ATTACKER_UIDS)
        attackers.call(
          port,
          `/stream/2/${SHOW.group}/${SHOW.stream}?uid=${uid}&token=bench-token`,
          {},
        );
    },
  },
  "json-values": {
    ...{ who: "user", stores: embedded, title: "10 users send JSON of 128 KiB of nested values" },
    start(attackers) {
      const values = "[[[[0]]]],".repeat(FRAME_BYTES / 10);
      const frame = clientFrame(
        `{"jsonrpc":"2.0","id":"2","method":"ping","params":{"x":[${values}0]}}`,
      );
      for (const uid of ATTACKER_UIDS) attackers.session(jsonLogin(uid), () => frame);
    },
  },
  "json-requests": {
    ...{
      who: "user",
      stores: embedded,
      title: "10 users send 100 JSON-RPC requests in each frame",
    },
    start(attackers) {
      const ping = '{"jsonrpc":"2.0","id":"2","method":"ping"}';
      const frame = volley(clientFrame(ping.repeat(100)));
      for (const uid of ATTACKER_UIDS) attackers.session(jsonLogin(uid), () => frame);
    },
  },
  deaf: {
    ...{ who: "user", stores: embedded },
    title: "100 sockets of one user read nothing, while another user sends 60 KiB messages",
    start(attackers) {
      for (const _ of range(MANY_SOCKETS)) attackers.deafSession(nativeLogin(attacker(0)));
      const frame = sendTo(ARCHIVE, { bytes: LARGE_BYTES });
      for (const at of range(USERS).slice(1))
        attackers.session(nativeLogin(attacker(at)), () => frame);
    },
  },
  pings: {
    ...{ who: "user", stores: embedded, title: "10 users send WebSocket pings" },
    start: (attackers) => floods(attackers, Buffer.from([0x89, 0x80, 0, 0, 0, 0])),
  },
  history: {
    ...{ who: "user", stores: both, title: "10 users read pages of 500 messages of 1,000 bytes" },
    start(attackers) {
      const channel = { type: GROUP_CHANNEL, id: ARCHIVE } as const;
      const range = { fromSeq: 1, toSeq: 0, limit: 500, reverse: false };
      floods(attackers, operationFrame({ kind: "history", ref: 7, channel, ...range }));
    },
  },
  conversations: {
    ...{ who: "user", stores: both, title: "10 users list their 500 conversations" },
    start: (attackers) =>
      floods(
        attackers,
        operationFrame({ kind: "conversations", ref: 7, limit: 500, cursor: undefined }),
      ),
  },
  presence: {
    ...{ who: "user", stores: both, title: "10 users ask for the presence of 1,000 users" },
    start(attackers) {
      const uids = range(1000).map((at) => `user-${at}`);
      floods(attackers, operationFrame({ kind: "presence", ref: 7, uids }));
    },
  },
  resume: {
    ...{ who: "user", stores: both },
    title: "10 users reconnect without end, and resume a long channel from its beginning",
    start(attackers) {
      for (const uid of ATTACKER_UIDS) {
        const frame = operationFrame({
          ...({ kind: "connect", ref: 1, version: 1, uid, flag: 0, deviceId: "" } as const),
          ...{ token: "bench-token", level: undefined, sessionName: "" },
          resume: [{ channel: { type: GROUP_CHANNEL, id: ARCHIVE }, lastSeq: 1, lastId: 0 }],
        });
        const login = { ...nativeLogin(uid), frame };
        attackers.keepOpen({ port: attackers.nextClientPort() }, (socket) => {
          socket.write(login.upgrade);
          socket.once("data", () => socket.write(login.frame));
          setTimeout(() => socket.destroy(), RECONNECT_MS).unref();
        });
      }
    },
  },
  "unread-replies": {
    ...{ who: "backend", stores: embedded },
    title: "50 HTTP connections of a backend request pages of history and read nothing",
    start(attackers) {
      const { apiPort } = attackers.target;
      const get = Buffer.from(
        `GET /channel/messages?channel_id=${ARCHIVE}&channel_type=2&limit=500 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`,
      );
      for (const _ of range(50))
        attackers.keepOpen({ port: apiPort }, (socket) => {
          socket.pause();
          for (const _ of range(20)) socket.write(get);
        });
    },
  },
};

const RECONNECT_MS = 300;

/** Lets the first `users` attackers send the frame as fast as the node reads. */
function floods(attackers: Attackers, frame: Uint8Array, users = USERS): void {
  const bytes = volley(frame);
  for (const at of range(users)) attackers.session(nativeLogin(attacker(at)), () => bytes);
}

function operationFrame(operation: Operation): Uint8Array {
  return clientFrame(encodeOperation(operation));
}

interface SendOptions {
  readonly bytes?: number;
  readonly isCommand?: boolean;
  readonly isPersonal?: boolean;
}

function sendTo(
  id: string,
  { bytes = 100, isCommand = false, isPersonal = false }: SendOptions = {},
): Uint8Array {
  const type = isPersonal ? PERSON_CHANNEL : GROUP_CHANNEL;
  return operationFrame({
    ...({ kind: "send", ref: 7, clientMsgNo: "", expireS: 0 } as const),
    ...{ streamNo: undefined, tagKey: undefined, channel: { type, id } },
    header: { noPersist: false, redDot: true, syncOnce: isCommand },
    payload: Buffer.from(JSON.stringify({ type: 1, content: "x".repeat(bytes) })),
  });
}

function range(length: number): readonly number[] {
  return Array.from({ length }, (_, at) => at);
}
