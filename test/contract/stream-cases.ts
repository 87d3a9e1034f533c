// The state machine of streams as a table [spec: Streaming text session; decisions: Messages and
// events]: the result of each call in each state, and the events that it publishes. Contains only
// data; `store-streams.ts` tests every driver with it.

/**
 * State of the channel before the call. The call is for stream "s". Stream "o" is another stream of
 * the channel.
 *
 * | none                  | no stream and no message                            |
 * | other active          | stream "o" is active                                |
 * | taken                 | a plain message has the clientMsgNo "s"             |
 * | taken, other active   | both of the above                                   |
 * | active                | stream "s" is active                                |
 * | closed                | stream "s" has ended                                |
 * | cancelled             | a forced start of stream "o" has ended stream "s"   |
 * | stopped               | `cancelStream` has ended stream "s"                 |
 * | interrupted           | stream "s" has ended because no event arrived       |
 */
export type Precondition =
  | "none"
  | "other active"
  | "taken"
  | "taken, other active"
  | "active"
  | "closed"
  | "cancelled"
  | "stopped"
  | "interrupted";

/**
 * The call. "repeated" means that the event has the id of an earlier event. "silence" ends all
 * streams without a recent event, and "message" appends a plain message with the clientMsgNo "s".
 */
export type StreamCall =
  | "start"
  | "forced start"
  | "start by bob"
  | "content"
  | "repeated content"
  | "tool"
  | "repeated tool"
  | "end"
  | "cancel"
  | "silence"
  | "message";

/**
 * The result of the call and the events that it publishes.
 *
 * The result is the verdict and the state of stream "s", or `-` if there is no such stream. The
 * result of `message` is `new`, `retry` or an error code, and the result of `silence` is `-`.
 *
 * A published stream event is written as name of the stream, index, type, and the state after the
 * event. A published message is written as `message`.
 */
export type Outcome = readonly [result: string, ...published: string[]];

/**
 * The calls by which each state is reached. "e0" and so on are event ids. The active stream has
 * events with the indexes 0 to 2.
 */
export const PRECEDING_CALLS: Readonly<Record<Precondition, readonly string[]>> = {
  none: [],
  "other active": ["o start e0"],
  taken: ["message"],
  "taken, other active": ["message", "o start e0"],
  active: ["s start e0", "s content e1", "s tool e2"],
  closed: ["s start e0", "s content e1", "s tool e2", "s end e3"],
  cancelled: ["s start e0", "s content e1", "s tool e2", "o forced-start e0"],
  stopped: ["s start e0", "s content e1", "s tool e2", "cancel"],
  interrupted: ["s start e0", "s content e1", "s tool e2", "silence"],
};

const MISSING: Outcome = ["missing -"];

export const STREAM_CASES: Readonly<Record<Precondition, Readonly<Record<StreamCall, Outcome>>>> = {
  none: {
    start: ["done active", "message", "s 0 start active"],
    "forced start": ["done active", "message", "s 0 start active"],
    "start by bob": ["done active", "message", "s 0 start active"],
    content: MISSING,
    "repeated content": MISSING,
    tool: MISSING,
    "repeated tool": MISSING,
    end: MISSING,
    cancel: MISSING,
    silence: ["-"],
    message: ["new", "message"],
  },
  "other active": {
    start: ["running -"],
    "forced start": ["done active", "o 1 end cancelled", "message", "s 0 start active"],
    "start by bob": ["running -"],
    content: MISSING,
    "repeated content": MISSING,
    tool: MISSING,
    "repeated tool": MISSING,
    end: MISSING,
    cancel: MISSING,
    silence: ["-", "o 1 end interrupted"],
    message: ["new", "message"],
  },
  taken: {
    start: ["taken -"],
    "forced start": ["taken -"],
    "start by bob": ["done active", "message", "s 0 start active"],
    content: MISSING,
    "repeated content": MISSING,
    tool: MISSING,
    "repeated tool": MISSING,
    end: MISSING,
    cancel: MISSING,
    silence: ["-"],
    message: ["retry"],
  },
  "taken, other active": {
    start: ["taken -"],
    "forced start": ["taken -"],
    "start by bob": ["running -"],
    content: MISSING,
    "repeated content": MISSING,
    tool: MISSING,
    "repeated tool": MISSING,
    end: MISSING,
    cancel: MISSING,
    silence: ["-", "o 1 end interrupted"],
    message: ["retry"],
  },
  active: {
    start: ["done active"],
    "forced start": ["done active"],
    "start by bob": ["done active"],
    content: ["done active", "s 3 content active"],
    "repeated content": ["done active"],
    tool: ["done active", "s 3 tool active"],
    "repeated tool": ["done active"],
    end: ["done closed", "s 3 end closed"],
    cancel: ["done cancelled", "s 3 end cancelled"],
    silence: ["-", "s 3 end interrupted"],
    message: ["client_msg_no_reused"],
  },
  closed: {
    start: ["closed closed"],
    "forced start": ["closed closed"],
    "start by bob": ["closed closed"],
    content: ["closed closed"],
    "repeated content": ["done closed"],
    tool: ["missing closed"],
    "repeated tool": ["done closed"],
    end: ["done closed"],
    cancel: ["done closed"],
    silence: ["-"],
    message: ["client_msg_no_reused"],
  },
  cancelled: {
    start: ["closed cancelled"],
    "forced start": ["closed cancelled"],
    "start by bob": ["closed cancelled"],
    content: ["closed cancelled"],
    "repeated content": ["done cancelled"],
    tool: ["missing cancelled"],
    "repeated tool": ["done cancelled"],
    end: ["done cancelled"],
    cancel: ["done cancelled"],
    silence: ["-", "o 1 end interrupted"],
    message: ["client_msg_no_reused"],
  },
  stopped: {
    start: ["closed cancelled"],
    "forced start": ["closed cancelled"],
    "start by bob": ["closed cancelled"],
    content: ["stopped cancelled"],
    "repeated content": ["done cancelled"],
    tool: ["stopped cancelled"],
    "repeated tool": ["done cancelled"],
    end: ["done cancelled"],
    cancel: ["done cancelled"],
    silence: ["-"],
    message: ["client_msg_no_reused"],
  },
  interrupted: {
    start: ["closed interrupted"],
    "forced start": ["closed interrupted"],
    "start by bob": ["closed interrupted"],
    content: ["closed interrupted"],
    "repeated content": ["done interrupted"],
    tool: ["missing interrupted"],
    "repeated tool": ["done interrupted"],
    end: ["done interrupted"],
    cancel: ["done interrupted"],
    silence: ["-"],
    message: ["client_msg_no_reused"],
  },
};
