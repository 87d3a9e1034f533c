// The reasons why Redis cannot be used, recognised by the error texts and codes of Redis, TLS and
// the network. Each reason states what is wrong and what the operator must do. Pure.

export interface Cause {
  /** Matches the text of an error reply, or the code and message of any other error. */
  readonly pattern?: RegExp;
  readonly what: string;
  readonly action: string;
  /** Error message for callers and clients. If absent, the message of `unavailable` is used. */
  readonly callerMessage?: string;
  /** True if waiting does not help because a setting or a program must be changed. */
  readonly lasts?: true;
  /**
   * Precision of the cause, `PRECISE` if absent. A more precise cause replaces a less precise one
   * in reports.
   */
  readonly precision?: 0 | 1;
  /**
   * True if the cause goes away without action by the operator, because the node reloads its
   * scripts and functions or rereads the slots. Such a cause does not begin an outage.
   */
  readonly passes?: true;
}

const CHECK_SLOTS =
  "Start the failed server, or assign its slots to another one (redis-cli --cluster check, redis-cli --cluster fix)";
const CHECK_LOAD =
  "Check whether Redis hangs (redis-cli --latency, SLOWLOG GET), and the network to it";

// A cause is exported if a check reports it or a caller handles it.
export const REPLICA = {
  pattern: /^(READONLY|MASTERDOWN)\b/,
  what: "the server is a replica, and a replica deletes its data when it synchronizes with its primary",
  action:
    "Set redis.url (JINDOU_REDIS_URL) to the primary, or make this server the primary with REPLICAOF NO ONE",
} satisfies Cause;
export const LOADING = {
  pattern: /^LOADING\b/,
  what: "Redis is still loading its data from disk",
  action: "Wait until Redis has loaded its data. The log of Redis shows the progress",
} satisfies Cause;

export const MISSING_FUNCTION = {
  pattern: /^ERR Function not found\b/,
  what: "Redis has lost the function library of this node",
  action: "Nothing needs to be done: the node loads it again",
  passes: true,
} satisfies Cause;

const SENTINELS: readonly Cause[] = [
  {
    pattern: /\bsentinels?\b.*\b(NOAUTH|WRONGPASS|NOPERM)\b/is,
    what: "a Sentinel rejects redis.sentinelPassword",
    action: "Set the Sentinels' password (JINDOU_REDIS_SENTINEL_PASSWORD)",
    lasts: true,
  },
  {
    pattern: /No such (master|primary)|invalid reply: null$/,
    what: "the Sentinels do not monitor a primary with the name in redis.sentinelName",
    action: "Check redis.sentinelName (JINDOU_REDIS_SENTINEL_NAME)",
  },
  {
    pattern: /unknown command.{0,3}\bsentinel\b/is,
    what: "redis.sentinelName is set, but redis.url is not the address of a Sentinel",
    action: "Set redis.url to the Sentinels, or remove redis.sentinelName",
    lasts: true,
  },
  {
    pattern: /All sentinels are unreachable/i,
    what: "no Sentinel in redis.url can be reached",
    action: "Start the Sentinels, or correct redis.url (JINDOU_REDIS_URL)",
  },
];

export const TOO_FEW_REPLICAS = {
  what: "Redis has fewer replicas than redis.minReplicas requires, so sends are rejected",
  action:
    "Start the replicas, check master_link_status in their replies to INFO replication, or lower redis.minReplicas (JINDOU_REDIS_MIN_REPLICAS)",
} satisfies Cause;
export const SLOTS_WITHOUT_SERVER = {
  pattern: /^CLUSTERDOWN.*not served/s,
  what: "some slots of the Redis Cluster have no server, so calls that need them are rejected",
  action: CHECK_SLOTS,
} satisfies Cause;
export const CLUSTER_DOWN = {
  pattern: /^CLUSTERDOWN\b/,
  what: "the Redis Cluster is down, because a primary has failed or slots have no server",
  action: CHECK_SLOTS,
} satisfies Cause;

const REPLIES: readonly Cause[] = [
  {
    pattern: /max number of clients/,
    what: "Redis has reached its maxclients limit",
    action:
      "Raise maxclients in the configuration of Redis and its limit on open files, or close connections of other programs (CLIENT LIST)",
  },
  {
    pattern: /^NOAUTH\b/,
    what: "Redis requires a password",
    action: "Add it to redis.url, as in redis://user:password@host:6379",
    lasts: true,
  },
  {
    pattern: /^(WRONGPASS\b|ERR invalid password|ERR AUTH\b|ERR unknown command.{0,3}auth\b)/i,
    what: "Redis rejects the user or the password",
    action: "Check the user and the password in redis.url, and the user in Redis (ACL LIST)",
    lasts: true,
  },
  {
    pattern: /^DENIED\b/,
    what: "Redis is in protected mode, in which it accepts only connections from its own machine",
    action: "Set a password in the configuration of Redis and in redis.url",
    lasts: true,
  },
  {
    pattern: /cluster support disabled/i,
    what: "Redis is not a Cluster",
    action: "Set redis.cluster (JINDOU_REDIS_CLUSTER) to false and redis.url to a single address",
    lasts: true,
  },
  {
    pattern: /^ERR unknown command.{0,3}cluster\b/i,
    what: "the server has no CLUSTER command. It is a Sentinel, or the command was renamed",
    action: "For Sentinels, set redis.sentinelName, and set redis.cluster to false",
    lasts: true,
  },
  LOADING,
  {
    pattern: /^(BUSY|UNKILLABLE)\b/,
    what: "a script or function has kept Redis busy for longer than its busy-reply-threshold",
    action: "End it with SCRIPT KILL or FUNCTION KILL, and find the program that runs it",
  },
  {
    pattern: /^MISCONF\b/,
    what: "Redis cannot write its data to the disk, so it rejects writes",
    action:
      "Check the log of Redis, and free space on its disk or repair the disk. Redis accepts writes again after a successful save",
    callerMessage:
      "Redis cannot write to its disk; check its log, and free space on the disk or repair it. Try again after the next successful save",
  },
  {
    pattern: /^OOM\b/,
    what: "Redis has used all the memory that its maxmemory allows, so it rejects writes",
    action:
      "Raise maxmemory. Keep maxmemory-policy noeviction, because any other policy deletes messages",
    callerMessage: "Redis is out of memory; raise its maxmemory, and try again later",
  },
  {
    pattern: /^IDLIMIT\b/,
    what: "a message id counter has reached its limit, so no message ids are left",
    action:
      "Restore Redis from an older backup, or set a different redis.prefix to begin without data",
    callerMessage:
      "No message ids are left in Redis; restore it from an older backup, or set a different redis.prefix",
    lasts: true,
  },
  {
    pattern: /^NOREPLICAS\b/,
    what: "Redis has fewer replicas than its min-replicas-to-write requires, so it rejects writes",
    action: "Start the replicas, and check master_link_status in their replies to INFO replication",
  },
  REPLICA,
  SLOTS_WITHOUT_SERVER,
  CLUSTER_DOWN,
  {
    pattern: /^(TRYAGAIN|MOVED|ASK)\b|\bScript attempted to access a non local key\b/,
    what: "slots of the Redis Cluster are moving to another server",
    action: "Wait until the move is complete",
    passes: true,
  },
  {
    pattern: /^NOSCRIPT\b/,
    what: "Redis has lost the scripts of this node",
    action: "Nothing needs to be done: the node loads them again",
    passes: true,
  },
  MISSING_FUNCTION,
  {
    pattern:
      /^NOPERM\b|ACL failure|can't run this command|permissions to access|access (at least )?one of the keys|publish to the channel/,
    what: "the user in redis.url lacks a right",
    action: "Grant the rights that docs/cluster.md lists (ACL SETUSER)",
    lasts: true,
  },
];

const CONNECTION: readonly Cause[] = [
  {
    pattern: /Unknown RESP type|it answers PING with/,
    what: "the server does not speak the Redis protocol, so it is not Redis",
    action: "Check the host and the port in redis.url (JINDOU_REDIS_URL)",
    lasts: true,
  },
  {
    pattern: /wrong.version.number|packet.length.too.long|http.request|answers without TLS/i,
    what: "redis.url begins with rediss://, but the port does not use TLS",
    action: "Write redis://, or use the port on which Redis accepts TLS",
    lasts: true,
  },
  {
    pattern: /answers with TLS/,
    what: "redis.url begins with redis://, but the port uses TLS",
    action:
      "Write rediss://, and set redis.caFile (JINDOU_REDIS_CA_FILE) if the certificate authority is your own",
    lasts: true,
  },
  {
    pattern: /ALTNAME/,
    what: "the certificate of Redis does not cover the host name in redis.url",
    action:
      "In redis.url, use a host name from the certificate, or have a certificate issued for the current host name",
    lasts: true,
  },
  {
    pattern: /^CERT_NOT_YET_VALID\b/, // occurs after a boot until the clock is set
    what: "the certificate of Redis is not valid yet according to the clock of this machine",
    action: "Check that clock",
  },
  {
    pattern: /^CERT_HAS_EXPIRED\b/,
    what: "the certificate of Redis has expired",
    action: "Renew the certificate, and check the clock of this machine",
    lasts: true,
  },
  {
    pattern: /certificate.required|peer did not return a certificate/i,
    what: "Redis requires client certificates, and this node has none",
    action: "Set tls-auth-clients no in the configuration of Redis, and use a password",
    lasts: true,
  },
  {
    pattern: /^\S*(CERT|SIGNATURE)\S* /,
    what: "this node does not trust the certificate of Redis",
    action:
      "Set redis.caFile (JINDOU_REDIS_CA_FILE) to the PEM file of the authority that signed the certificate",
    lasts: true,
  },
  {
    pattern: /^(ERR_TLS|ERR_SSL|EPROTO)/,
    what: "no TLS connection to Redis could be opened",
    action: "Check redis.url, and tls-protocols and tls-ciphers in the configuration of Redis",
    lasts: true,
  },
  {
    pattern: /\bECONNREFUSED\b/,
    what: "no server accepts connections at the address of Redis",
    action: "Start Redis, or correct redis.url (JINDOU_REDIS_URL)",
  },
  {
    pattern: /\bENOTFOUND\b/,
    what: "the host name of Redis is unknown",
    action: "Check redis.url (JINDOU_REDIS_URL), and the name server of this machine",
  },
  {
    pattern: /\bEAI_AGAIN\b/,
    what: "no name server has answered the query for the host name of Redis",
    action: "Check the name server of this machine, and redis.url (JINDOU_REDIS_URL)",
  },
  {
    pattern: /\b(ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EHOSTDOWN)\b/,
    what: "the address of Redis does not answer",
    action:
      "Check redis.url (JINDOU_REDIS_URL), the network and firewalls. With rediss:// the port must use TLS",
    precision: 1,
  },
  {
    pattern: /\b(EMFILE|ENFILE)\b/,
    what: "no file descriptor is free for a connection to Redis",
    action: "Raise the limit on open files of this process (EMFILE) or of the system (ENFILE)",
  },
  {
    pattern: /Command timed out|Socket timeout/,
    what: "Redis has not answered within redis.timeoutMs",
    action: CHECK_LOAD,
    precision: 1,
  },
  {
    pattern:
      /ECONNRESET|EPIPE|onnection is closed|socket disconnected|isn't writeable|max retries per request/,
    what: "the server closed the connection",
    action: "Check that Redis is running. If its port uses TLS, write rediss:// in redis.url",
    precision: 0,
  },
];

export const UNNEEDED_PASSWORD =
  "Redis requires no password although redis.url has one, so every program that reaches Redis can read and change its data. Set requirepass or a user in the configuration of Redis, or remove the password from redis.url";

/**
 * Returns true if a server rejected AUTH with this text because its user `default` has no password.
 */
export function isUnneededPassword(text: string): boolean {
  return /without any password configured for the default user/.test(text);
}

/** Patterns of lines that ioredis prints about problems that the node reports itself. */
const PRINTED = [/password was supplied/, /^Skipping the ready check because INFO command fails/];

export function isReportedElsewhere(line: string): boolean {
  return PRINTED.some((pattern) => pattern.test(line));
}

const PRECISE = 2;

/** Returns the precision of a cause. An unknown cause counts as precise. */
export function precisionOf(cause: Cause | undefined): number {
  return cause?.precision ?? PRECISE;
}

export function isPrecise(cause: Cause | undefined): boolean {
  return precisionOf(cause) === PRECISE;
}

export function causeOfReply(text: string): Cause | undefined {
  return REPLIES.find(({ pattern }) => pattern?.test(text));
}

/** Returns true if the cause is a failed lookup of the primary through the Sentinels. */
export function isOfSentinels(cause: Cause | undefined): boolean {
  return cause !== undefined && SENTINELS.includes(cause);
}

/** Returns the cause of a connection or Sentinel error. `text` is the error's code and message. */
export function causeOfFailure(text: string): Cause | undefined {
  return [...SENTINELS, ...REPLIES, ...CONNECTION].find(({ pattern }) => pattern?.test(text));
}

const DENIED_COMMAND = /permissions to run the '([^' ]+)' command/;

/** Returns the error message about a cause. `detail` is the error's text or a check's finding. */
export function sentenceAbout({ what, action }: Cause, detail = ""): string {
  if (detail === "") return `${what}. ${action}`;
  const right = DENIED_COMMAND.exec(detail)?.[1];
  const grant = right === undefined ? "" : `, at least: ACL SETUSER <user> +${right}`;
  return `${what} (${detail}). ${action}${grant}`;
}
