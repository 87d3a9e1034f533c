// Credentials and users of the crash test.

export const STATIC_TOKEN = "the-static-token";
/** Token of every user whose token does not change. */
export const TOKEN = "a-user-token";
export const ADMIN_PASSWORD = "an admin's password";

export const GROUPS = ["alpha", "beta"];
export const HTTP_SENDERS = ["http-0", "http-1"];
export const SOCKET_SENDERS = ["socket-0", "socket-1"];
/** Users who read. The first stays connected, the second reconnects again and again. */
export const READERS = ["reader-0", "reader-1"];
