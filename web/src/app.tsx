/** The frame around the views: header, connection, notices, routing. */

import { batch } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { errorMessage } from "./api/api-error";
import { setToken, token } from "./api/token";
import { EmptyState } from "./components/feedback";
import { formatTime, pluralize } from "./lib/format";
import { route } from "./state/navigation";
import { clearState, clock, connection, currentToken, overview, signIn, stream } from "./state/server-state";
import { ClusterView } from "./views/cluster";
import { JobView } from "./views/job";
import { JobsView } from "./views/jobs";
import { PoliciesView } from "./views/policies";
import { SignInView } from "./views/sign-in";
import { SubmitView } from "./views/submit";

const SIGN_IN_RETRY_MS = 2000;
const RECONNECTED_MS = 4000;

export function App() {
  const [message, setMessage] = useState<string | null>(null);
  const secret = token.value;
  useEffect(() => {
    if (secret !== null) {
      if (currentToken.peek() === null) signInWithRetries(setMessage);
      return;
    }
    if (currentToken.peek() !== null) setMessage("The token is no longer valid: it expired or was revoked. Enter another one.");
    clearState();
  }, [secret]);
  if (secret === null) return <SignInView message={message} key={message} />;
  return (
    <>
      <button type="button" class="skip-link" onClick={() => document.getElementById("main")!.focus()}>
        Skip to content
      </button>
      <Header onSignOut={() => signOut(setMessage)} />
      <Notices />
      <main id="main" tabIndex={-1}>
        {currentToken.value !== null || message === null ? (
          <CurrentView />
        ) : (
          <EmptyState title="The server cannot be reached">{message}</EmptyState>
        )}
      </main>
    </>
  );
}

function signOut(setMessage: (text: string | null) => void): void {
  setMessage(null);
  batch(() => {
    currentToken.value = null; // Before the token: a token that goes while the user is signed in was revoked.
    setToken(null);
  });
}

/** Tries until the server answers. If it refuses the token, the page asks for another one. */
function signInWithRetries(setMessage: (text: string | null) => void): void {
  signIn().then(
    () => setMessage(null),
    (error: unknown) => {
      if (token.value === null) {
        setMessage(errorMessage(error));
        return;
      }
      void stream.run();
      setTimeout(() => {
        if (token.value !== null && currentToken.value === null) signInWithRetries(setMessage);
      }, SIGN_IN_RETRY_MS);
    },
  );
}

const NAVIGATION = [
  { view: "cluster", href: "#/", label: "Cluster" },
  { view: "jobs", href: "#/jobs", label: "Jobs" },
  { view: "policies", href: "#/policies", label: "Policies" },
] as const;

function Header({ onSignOut }: { onSignOut: () => void }) {
  const current = route.value.view === "job" ? "jobs" : route.value.view;
  const user = currentToken.value;
  return (
    <header class="page-header">
      <a class="brand" href="#/" aria-label="stretto: cluster">
        <img src="/icon.svg" alt="" width={24} height={24} /> <span>stretto</span>
      </a>
      <nav aria-label="views">
        {NAVIGATION.map(({ view, href, label }) => (
          <a key={view} href={href} aria-current={current === view ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <span class="spacer" />
      <SlotUse />
      <ConnectionStatus />
      <a class="button primary" href="#/submit" aria-current={current === "submit" ? "page" : undefined}>
        Submit<span class="wide-only">&nbsp;a job</span>
      </a>
      <button
        type="button"
        class="quiet"
        onClick={onSignOut}
        title={user ? `signed in as ${user.name} (${user.scope})` : undefined}
      >
        Sign out
      </button>
    </header>
  );
}

function SlotUse() {
  if (overview.value === null) return null;
  const { used, slots, policy, cluster, version } = overview.value;
  return (
    <span class="slot-use" title={`policy ${policy}, cluster ${cluster}, stretto ${version}`}>
      {used} of {pluralize(slots, "slot")} in use
    </span>
  );
}

function ConnectionStatus() {
  const { state } = connection.value;
  return (
    <span class={`connection connection-${state}`} role="status">
      {state}
    </span>
  );
}

function Notices() {
  const alarms = overview.value?.alarms ?? [];
  return (
    <div class="notices">
      <ConnectionNotice />
      {alarms.map((alarm) => (
        <p class="notice is-alarm" role="alert" key={alarm.name}>
          <b>Alarm</b> {alarm.text}
          {alarm.count > 1 && <span class="muted"> ({alarm.count} times)</span>}
        </p>
      ))}
    </div>
  );
}

/** While the connection is lost, says so with a button to retry; says for a moment that it is back. */
function ConnectionNotice() {
  const current = connection.value;
  const previousState = useRef(current.state);
  const [reconnected, setReconnected] = useState(false);
  useEffect(() => {
    const isBack = previousState.current === "lost" && current.state === "live";
    previousState.current = current.state;
    setReconnected(isBack);
    if (!isBack) return;
    const timer = setTimeout(() => setReconnected(false), RECONNECTED_MS);
    return () => clearTimeout(timer);
  }, [current.state]);
  if (current.state !== "lost") return reconnected ? <Reconnected /> : null;
  void clock.value; // Counts down every second.
  const wait = Math.max(0, Math.ceil((current.retryAt - Date.now()) / 1000));
  const since = formatTime(current.since / 1000, current.since / 1000);
  return (
    <p class="notice is-lost" role="alert" data-testid="lost">
      <b>Connection lost, retrying.</b>{" "}
      <span>
        {current.reason}. Jobs keep training; this page shows the state at {since}.
      </span>
      <button type="button" onClick={() => stream.retryNow()}>
        Retry now{wait > 0 ? ` (${wait} s)` : ""}
      </button>
    </p>
  );
}

function Reconnected() {
  return (
    <p class="notice is-reconnected" role="status" data-testid="reconnected">
      Connected again. Everything is up to date.
    </p>
  );
}

function CurrentView() {
  const current = route.value;
  useEffect(() => {
    scrollTo(0, 0);
    if (current.view !== "job") stream.watch(null);
  }, [current]);
  switch (current.view) {
    case "cluster":
      return <ClusterView />;
    case "jobs":
      return <JobsView />;
    case "job":
      return <JobView id={current.id} key={current.id} />;
    case "submit":
      return <SubmitView />;
    case "policies":
      return <PoliciesView />;
    case "unknown":
      return (
        <EmptyState title="Page not found">
          <p>
            <code>#{current.path}</code> does not exist. <a href="#/">Go to the cluster</a>
          </p>
        </EmptyState>
      );
  }
}
