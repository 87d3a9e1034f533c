// The state machine of streams as a table [spec: Streaming text session; decisions: Messages and
// events]: what each call answers and publishes in each state. Data only; `store-streams.ts` asks
// every driver.

/** What the channel has before the call. "s" is the stream that the call names, "o" another one. */
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

export type StreamCall =
  | "start"
  | "forced start"
  | "start by bob"
  | "content"
  | "known content"
  | "tool"
  | "known tool"
  | "end"
  | "cancel"
  | "silence"
  | "message";

/**
 * The answer, then what is published. The answer: verdict and state (`-`: no such stream); of
 * `message`, a plain message with the stream's clientMsgNo, `new` or `retry`; of `silence`, which
 * is about all streams, `-`. An event: stream, index, type and the state behind it.
 */
export type Outcome = readonly [answer: string, ...published: string[]];

/**
 * How a state comes about, call by call; "e0" and so on are ids of events. The active stream has
 * the indexes 0 to 2.
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
    "known content": MISSING,
    tool: MISSING,
    "known tool": MISSING,
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
    "known content": MISSING,
    tool: MISSING,
    "known tool": MISSING,
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
    "known content": MISSING,
    tool: MISSING,
    "known tool": MISSING,
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
    "known content": MISSING,
    tool: MISSING,
    "known tool": MISSING,
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
    "known content": ["done active"],
    tool: ["done active", "s 3 tool active"],
    "known tool": ["done active"],
    end: ["done closed", "s 3 end closed"],
    cancel: ["done cancelled", "s 3 end cancelled"],
    silence: ["-", "s 3 end interrupted"],
    message: ["retry"],
  },
  closed: {
    start: ["closed closed"],
    "forced start": ["closed closed"],
    "start by bob": ["closed closed"],
    content: ["closed closed"],
    "known content": ["done closed"],
    tool: ["missing closed"],
    "known tool": ["done closed"],
    end: ["done closed"],
    cancel: ["done closed"],
    silence: ["-"],
    message: ["retry"],
  },
  cancelled: {
    start: ["closed cancelled"],
    "forced start": ["closed cancelled"],
    "start by bob": ["closed cancelled"],
    content: ["closed cancelled"],
    "known content": ["done cancelled"],
    tool: ["missing cancelled"],
    "known tool": ["done cancelled"],
    end: ["done cancelled"],
    cancel: ["done cancelled"],
    silence: ["-", "o 1 end interrupted"],
    message: ["retry"],
  },
  stopped: {
    start: ["closed cancelled"],
    "forced start": ["closed cancelled"],
    "start by bob": ["closed cancelled"],
    content: ["stopped cancelled"],
    "known content": ["done cancelled"],
    tool: ["stopped cancelled"],
    "known tool": ["done cancelled"],
    end: ["done cancelled"],
    cancel: ["done cancelled"],
    silence: ["-"],
    message: ["retry"],
  },
  interrupted: {
    start: ["closed interrupted"],
    "forced start": ["closed interrupted"],
    "start by bob": ["closed interrupted"],
    content: ["closed interrupted"],
    "known content": ["done interrupted"],
    tool: ["missing interrupted"],
    "known tool": ["done interrupted"],
    end: ["done interrupted"],
    cancel: ["done interrupted"],
    silence: ["-"],
    message: ["retry"],
  },
};
