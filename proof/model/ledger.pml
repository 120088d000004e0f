/* Claim, lease, fence, settle and sweep for one entry: a small model of docs/states.md, for spin.
 *
 * Three callers, each with an attempt id of its own, come through daemons that keep nothing between calls. A step of the store is atomic and
 * guarded; between a daemon's reading and its writing everything else may happen. Time is a process that ends leases, retentions and
 * tombstones whenever it likes. Replies are lost, and callers die, at any point. Downstream, where the effects are, fences are compared, and
 * whoever is warned asks first.
 *
 * Each of these, given with -D, is a fault that must break an assertion: NO_REVISION, OWN_CLOCK, ID_TWICE, NO_DOUBT, NO_FENCE, FENCE_BACK,
 * EARLY_ACK, FORGET_EARLY, SWEEP_PENDING, OTHERS_SETTLE. */

mtype = { NONE, PENDING, COMPLETED, TOMBSTONE };

/* The row, as it is stored. */
mtype state = NONE;
bool same[4];            /* has the revision that this reader saw: 1 to 3 the callers, 0 the sweeper */
byte holder = 0;         /* the attempt id of the current attempt */
byte fence = 0;
bool leased = false;     /* by the store's clock */
bool doubt = false;
byte answer = 0;         /* the fence of the attempt that settled */

/* What the world knows, and the ledger does not. */
bool used[4] = false;    /* this attempt id had its claim */
byte acknowledged = 0;   /* the answer that a caller was told is kept */
bool promised = false;   /* that answer's retention or tombstone is not over */
byte effects = 0;        /* of this intent */
byte arrived = 0;        /* the highest fence that came downstream */
byte granted = 0;        /* the highest fence that was given out */

/* A write raises the revision. Only whether it is the one that somebody saw counts, and so that is all that is kept of it. */
#define WRITTEN same[0] = false; same[1] = false; same[2] = false; same[3] = false

#ifdef NO_REVISION
#define UNCHANGED true
#else
#define UNCHANGED same[me]
#endif

#ifdef OTHERS_SETTLE
#define MINE true
#else
#define MINE (holder == id && fence == mine)
#endif

/* The write that makes id the current attempt. */
inline grant() {
  assert(!(state == PENDING && leased));             /* G1: one live claim at a time */
  assert(!used[id]);                                 /* G3: an attempt id grants once */
  assert(!promised);                                 /* G6: what was promised to be known is known */
  assert(acknowledged == 0 || state == NONE);        /* G2: what was acknowledged is there */
  if
  :: state == NONE -> doubt = false; answer = 0; acknowledged = 0;
#ifdef FENCE_BACK
     fence = 0;
#endif
  :: else ->
#ifndef NO_DOUBT
     doubt = true;
#endif
     skip
  fi;
  state = PENDING; holder = id; leased = true; fence++; WRITTEN; used[id] = true;
  assert(fence > granted);                           /* fences only rise, over all lives */
  granted = fence; mine = fence; warned = doubt
}

#define me id
proctype Caller(byte id) {
  byte mine, sent = 0;
  mtype seen;
  bool live, own, warned, there;
send:
  atomic {
    if
    :: sent == 2 -> goto end                         /* the Begin, and the same once more */
    :: else -> sent++
    fi
  };
read:
  atomic {
    same[me] = true; seen = state; own = (holder == id); live = leased;
#ifdef OWN_CLOCK
    if :: live = false :: skip fi                    /* the daemon goes by a clock of its own, which is ahead */
#endif
  };
  atomic {
    if
    :: seen == COMPLETED || seen == TOMBSTONE -> goto end            /* replayed, EXPIRED */
    :: seen == PENDING && !own && live -> goto end                   /* IN_PROGRESS */
    :: seen == PENDING && own ->
       if
       :: state == PENDING && holder == id -> leased = true; WRITTEN; mine = fence; warned = doubt   /* resumed */
       :: else -> goto read
       fi
    :: else ->
       if
#ifndef ID_TWICE
       :: used[id] -> goto end                                       /* CLAIM_LOST */
#endif
       :: (UNCHANGED && (state == NONE || state == PENDING)
#ifndef ID_TWICE
           && !used[id]
#endif
          ) -> grant()
       :: !UNCHANGED -> goto read
       fi
    fi
  };
  if
  :: goto send                                       /* the reply was lost */
  :: goto end                                        /* the caller dies */
  :: skip
  fi;

  /* The work. Whoever is warned makes its fence known downstream, and asks. */
  there = false;
  atomic {
    if
    :: warned ->
       if
#ifndef NO_FENCE
       :: mine < arrived -> goto end
       :: mine >= arrived -> arrived = mine
#else
       :: skip
#endif
       fi;
       there = (effects > 0)
    :: else -> skip
    fi
  };
  atomic {
    if
    :: there -> skip
#ifndef NO_FENCE
    :: !there && mine < arrived -> goto end
    :: !there && mine >= arrived -> arrived = mine; effects++
#else
    :: !there -> effects++
#endif
    fi;
    assert(effects <= 1)
  };
  if
  :: goto end                                        /* the caller dies: it happened, and nobody was told */
  :: skip
  fi;

complete:
#ifdef EARLY_ACK
  acknowledged = mine;
  if :: goto end :: skip fi;                         /* and the daemon is killed before the write */
#endif
  atomic {
    if
    :: state == PENDING && MINE ->                   /* also when the lease is over: the truth is welcome */
       state = COMPLETED; answer = mine; leased = false; WRITTEN; promised = true
    :: state == COMPLETED && answer == mine -> skip  /* the same report again */
    :: else -> goto end                              /* CLAIM_LOST */
    fi;
    assert(answer == mine);
    assert(acknowledged == 0 || acknowledged == mine);     /* G1: an answer never changes */
    assert(fence == mine);                                 /* nobody settles for another */
    acknowledged = mine
  };
  if
  :: goto complete                                   /* the reply was lost */
  :: skip
  fi;
end:
  skip
}

#undef me
#define me 0

/* Time ends what it likes, when it likes. */
proctype Time() {
end:
  do
  :: atomic { state == PENDING && leased -> leased = false }
  :: atomic { state == COMPLETED && promised -> promised = false; effects = 0 }  /* a duplicate from now on is a new intent */
  od
}

/* The sweep of another daemon. */
proctype Sweeper() {
  mtype seen;
  bool over;
end:
  do
  :: atomic {
       state != NONE -> same[me] = true; seen = state; over = !promised;
#ifdef FORGET_EARLY
       over = true
#endif
     };
     atomic {
       if
       :: seen == COMPLETED && over && UNCHANGED -> state = TOMBSTONE; WRITTEN
       :: seen == TOMBSTONE && UNCHANGED -> state = NONE; holder = 0; leased = false; WRITTEN
#ifdef SWEEP_PENDING
       :: seen == PENDING && UNCHANGED -> state = NONE; holder = 0; leased = false; WRITTEN
#endif
       :: else -> skip
       fi
     }
  od
}

init {
  atomic { run Caller(1); run Caller(2); run Caller(3); run Time(); run Sweeper() }
}
