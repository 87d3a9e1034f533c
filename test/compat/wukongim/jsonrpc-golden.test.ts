// Messages captured from real WuKongIM servers and clients (goldens/jsonrpc.json). Every message of
// a client must decode, and every message of a server must be encoded to the same bytes. The
// exceptions are defects of WuKongIM and deliberate differences. Each of them is an entry of
// `REFUSED` or a line of `asEncodedHere`.

import { readFileSync } from "node:fs";
import { CLOSE_REASONS } from "../../../src/broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type Message,
  SYSTEM_UID,
} from "../../../src/broker/model.ts";
import { JSONRPC_FORMS } from "../../../src/compat/wukongim/jsonrpc-view.ts";
import { createJsonRpcProtocol } from "../../../src/protocol/jsonrpc/jsonrpc.ts";
import { type Codec, FrameError, type Push } from "../../../src/protocol/protocol.ts";
import type { Json } from "../../support/jsonrpc-client.ts";
import { t } from "../../support/suite.ts";
import { LIMITS } from "../../wire/native-codec.ts";

/** A captured message, and who sent it. */
interface Golden {
  readonly dir: string;
  readonly text: string;
}
/** The captured messages of one connection. */
interface JsonRpcSession {
  readonly name: string;
  readonly frames: readonly Golden[];
}

const { sessions } = JSON.parse(
  readFileSync(new URL("goldens/jsonrpc.json", import.meta.url), "utf8"),
) as { sessions: readonly JsonRpcSession[] };

const protocol = createJsonRpcProtocol(LIMITS, JSONRPC_FORMS);
const bytesOf = (text: string) => new TextEncoder().encode(text);

/** Patterns of the client messages that must be refused. All others must be accepted. */
const REFUSED = [
  /"method":"nope"/,
  /"method":"subscribe"/,
  /"payload":"!!!"/,
  /"channel_id"/, // channelId is missing; WuKongIM refuses it too
  /"jsonrpc":"1.0"/,
  /^\{nope/,
  /"method":"send","id":"x1"\}/, // params are missing
  /"uid":"a@b"/,
  /"method":"connect","params":\{[^}]*\}\}$/, // the id is missing
  /^\{"method":"ping","params":\{\},"id":"x"\}$/, // sent before connect
];

t.test(
  "every captured message of a WuKongIM client is decoded, except messages that must be refused",
  async (t) => {
    let count = 0;
    for (const { name, frames } of sessions) {
      const codec = protocol.open();
      for (const { text } of frames.filter(({ dir }) => dir === "c>s")) {
        t.ok(protocol.speaks(bytesOf(text), true), `the protocol is detected from ${text}`);
        const requests = [...codec.decode(bytesOf(text), true)];
        const isRefused = requests.some((request) => request instanceof FrameError);
        const expected = REFUSED.some((pattern) => pattern.test(text));
        t.equal(
          isRefused,
          expected,
          `the message ${text} of session ${name} is decoded or refused as expected`,
        );
        count += 1;
      }
    }
    t.ok(count > 70, `${count} messages were compared`);
  },
);

t.test(
  "every captured message of a WuKongIM server except errors is encoded as captured, apart from the known differences",
  async (t) => {
    let count = 0;
    for (const { name, frames } of sessions) {
      const codec = protocol.open();
      const connects = new Map<string, Json>();
      const refs = new Map<string, number>();
      for (const { dir, text } of frames) {
        if (dir === "closed") continue;
        if (dir === "c>s") {
          const ids = idsIn(text);
          [...codec.decode(bytesOf(text), true)]
            .filter(({ ref }) => ref > 0)
            .forEach(({ ref }, i) => {
              refs.set(ids[i] ?? "", ref);
            });
          if (text.includes('"connect"')) connects.set(ids[0] ?? "", parse(text));
          continue;
        }
        const frame = parse(text);
        // WuKongIM sends code 0 and a Go error; errors have their own codes here
        if (frame.error !== undefined) continue;
        const encodedText = encodeAgain(codec, frame, refs, connects);
        t.equal(
          encodedText,
          asEncodedHere(text),
          `a message of session ${name} has the same bytes`,
        );
        count += 1;
      }
    }
    t.ok(count > 60, `${count} messages were compared`);
  },
);

/** Returns the parsed message, or `undefined` if it is not JSON. */
function parse(text: string): Json {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns the ids of all requests in a message. */
function idsIn(text: string): readonly string[] {
  return [...text.matchAll(/"id":"([^"]+)"/g)].map(([, id = ""]) => id);
}

/** Encodes the reply or push that corresponds to a captured server message. */
function encodeAgain(
  codec: Codec,
  { id, result = {}, method, params }: Json,
  refs: ReadonlyMap<string, number>,
  connects: ReadonlyMap<string, Json>,
): unknown {
  if (method !== undefined) return codec.encodePush(pushOf(method, params));
  const ref = refs.get(id) ?? 0;
  if (result.serverVersion !== undefined) {
    const clientTimestamp = connects.get(id)?.params?.clientTimestamp ?? 0;
    return codec.encodeReply({
      kind: "connack",
      ref,
      version: codec.version,
      sessionId: "",
      nodeId: String(result.nodeId),
      serverTimeMs: clientTimestamp + (result.timeDiff ?? 0),
      limits: {
        maxFrameBytes: 0,
        maxPayloadBytes: 0,
        idleTimeoutS: 0,
        maxFramesPerSecond: 0,
      },
      resume: [],
      newestId: 0,
    });
  }
  if (result.reasonCode === undefined)
    return codec.encodeReply({ kind: "pong", ref, serverTimeMs: 1 });
  if (result.reasonCode !== 1)
    return codec.encodeReply({
      ...{ kind: "error", ref, code: "not_subscriber" },
      ...{ message: "", retryAfterMs: 0 },
    });
  return codec.encodeReply({
    ...{ kind: "sendack", ref, clientMsgNo: "" },
    messageId: idOf(result.messageId),
    messageSeq: result.messageSeq,
  });
}

function pushOf(method: string, params: Json): Push {
  if (method === "disconnect") return { kind: "disconnect", reason: "kicked" };
  const channel: ChannelRef = {
    id: params.channelId ?? "ben",
    type: params.channelType ?? 1,
  };
  if (method === "event") return { kind: "event", channel, event: eventOf(params) };
  const message = messageOf(params, channel);
  return params.header?.syncOnce
    ? { kind: "command", channel, inboxSeq: params.messageSeq, message }
    : { kind: "message", channel, message };
}

function eventOf({ id, type, timestamp, data }: Json): ChannelEvent {
  return {
    ...{ key: "1:ann@ben", channel: { id: "ben", type: 1 }, fromUid: "ann" },
    clientMsgNo: "st-1",
    eventId: id,
    ...{ type, data, timestampMs: timestamp, stream: undefined },
  };
}

function messageOf(params: Json, channel: ChannelRef): Message {
  const { header = {}, setting = {}, topic = "" } = params;
  const bits = setting.receipt ? 0x80 : 0;
  return {
    messageId: idOf(params.messageId),
    messageSeq: params.messageSeq,
    ...{ key: "1:ann@ben", channel },
    fromUid: params.fromUid || SYSTEM_UID,
    clientMsgNo: params.clientMsgNo,
    timestampMs: params.timestamp * 1000,
    header: {
      noPersist: header.noPersist ?? false,
      redDot: header.redDot ?? false,
    },
    expireS: params.expire ?? 0,
    ...{ streamNo: undefined, tagKey: undefined },
    passthrough: bits || topic ? { setting: bits, topic } : undefined,
    payload: new Uint8Array(Buffer.from(params.payload, "base64")),
    stream: setting.stream && {
      ...{ key: "1:ann@ben", channel, fromUid: "ann", clientMsgNo: "st-1" },
      ...{ messageId: 1, messageSeq: 1, state: "active", text: "" },
      ...{ nextIndex: 0, startData: "", endData: undefined, notes: [] },
    },
  };
}

/** Returns the first 15 digits of an id, because WuKongIM's ids have 64 bits and ours have 53. */
function idOf(messageId: string): number {
  return Number(messageId.slice(0, 15));
}

/** Returns a captured text as this broker encodes it. */
function asEncodedHere(text: string): string {
  const replacements: readonly (readonly [RegExp, string])[] = [
    // an id has 15 digits, see `idOf`
    [/"messageId":"(\d{15})\d*"/, '"messageId":"$1"'],
    // the header is always present, because the Python client needs it
    [/("method":"recv","params":\{)(?!"header")/, '$1"header":{},'],
    // a response always has a result
    [/^(\{"jsonrpc":"2.0","id":"[^"]+")\}$/, '$1,"result":{}}'],
    // a refused message has no id
    [/"messageId":"\d+"(,"messageSeq":0,"reasonCode":3)/, '"messageId":"0"$1'],
    // the reason may have any text
    [/("reasonCode":12,"reason":)"[^"]+"/, `$1"${CLOSE_REASONS.kicked.message}"`],
    // start and end of a stream also have its clientMsgNo as their id
    [/"id":"[^"]*"(,"type":"___Text)/, '"id":"st-1"$1'],
  ];
  return replacements.reduce((result, [pattern, by]) => result.replace(pattern, by), text);
}
