//! Every system call up to Linux 6.18 by name and number, under the rule it has in a sandbox.
//!
//! Each call is in exactly one group; a call that is in none has a number we do not know and answers `ENOSYS`, so that
//! a C library newer than this table falls back. The start was what Docker allows by default with the capabilities our
//! sandboxes have. To add a call, decide its group; the committed dump in `snapshots/` shows the change.

use super::conditions::{CLONE, IOCTL, MKNODAT, PERSONALITY, PRLIMIT, SOCKET, SOCKETPAIR, UNSHARE};
use super::rule::{SyscallRule, Verdict};

/// A system call of this architecture.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: u32,
}

/// Calls whose numbers `libc` knows on every target we build for.
macro_rules! known {
    ($($constant:ident)*) => {
        &[$(Call { name: stringify!($constant).split_at("SYS_".len()).1, number: libc::$constant as u32 }),*]
    };
}

/// Calls with their numbers written out: from 424 on these are the same on every architecture.
macro_rules! numbered {
    ($($name:ident = $number:literal)*) => { &[$(Call { name: stringify!($name), number: $number }),*] };
}

/// Rejected with EPERM, as the kernel rejects callers without the capability.
const FORBIDDEN: SyscallRule = SyscallRule::always(Verdict::Errno(libc::EPERM));

/// Rejected with ENOSYS, like calls that a kernel does not have: obsolete ones, and new ones for which all callers have a
/// fallback.
const ABSENT: SyscallRule = SyscallRule::always(Verdict::Errno(libc::ENOSYS));

pub(super) const TABLE: &[(SyscallRule, &[Call])] = &[
    (
        SyscallRule::ALLOW,
        known! {
            SYS_accept SYS_accept4 SYS_adjtimex SYS_bind SYS_brk SYS_capget SYS_capset SYS_chdir SYS_clock_adjtime
            SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_close SYS_connect SYS_copy_file_range SYS_dup
            SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_eventfd2 SYS_execve SYS_execveat SYS_exit
            SYS_exit_group SYS_faccessat SYS_fadvise64 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown
            SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_flistxattr SYS_flock SYS_fremovexattr SYS_fsetxattr
            SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_get_mempolicy SYS_get_robust_list SYS_getcpu
            SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer SYS_getpeername
            SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid SYS_getresuid SYS_getrusage
            SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid SYS_getxattr
            SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy SYS_io_getevents
            SYS_io_setup SYS_io_submit SYS_ioprio_get SYS_ioprio_set SYS_kill SYS_lgetxattr SYS_linkat SYS_listen
            SYS_listxattr SYS_llistxattr SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_madvise SYS_membarrier
            SYS_memfd_create SYS_mincore SYS_mkdirat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mprotect
            SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_mremap
            SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_nanosleep
            SYS_newfstatat SYS_openat SYS_pipe2 SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl
            SYS_pread64 SYS_preadv SYS_preadv2 SYS_process_vm_readv SYS_process_vm_writev SYS_pselect6
            SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readlinkat SYS_readv
            SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_removexattr SYS_renameat2 SYS_restart_syscall SYS_rseq
            SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn
            SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max
            SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
            SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr
            SYS_sched_setparam SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop
            SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address
            SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setitimer SYS_setpgid SYS_setpriority SYS_setregid
            SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid SYS_setsockopt SYS_setuid SYS_setxattr SYS_shmat
            SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown SYS_sigaltstack SYS_signalfd4 SYS_splice SYS_statfs SYS_statx
            SYS_symlinkat SYS_sync SYS_syncfs SYS_sysinfo SYS_tee SYS_tgkill SYS_timer_create SYS_timer_delete
            SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create SYS_timerfd_gettime
            SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask SYS_uname SYS_unlinkat SYS_utimensat
            SYS_vmsplice SYS_wait4 SYS_waitid SYS_write SYS_writev
        },
    ),
    (
        SyscallRule::ALLOW,
        numbered! {
            pidfd_send_signal = 424 pidfd_open = 434 close_range = 436 openat2 = 437 pidfd_getfd = 438
            faccessat2 = 439 process_madvise = 440 epoll_pwait2 = 441 landlock_create_ruleset = 444
            landlock_add_rule = 445 landlock_restrict_self = 446 process_mrelease = 448 futex_waitv = 449
            cachestat = 451 fchmodat2 = 452 map_shadow_stack = 453 futex_wake = 454 futex_wait = 455
            futex_requeue = 456 mseal = 462 setxattrat = 463 getxattrat = 464 listxattrat = 465 removexattrat = 466
        },
    ),
    (CLONE, known! { SYS_clone }),
    (UNSHARE, known! { SYS_unshare }),
    (SOCKET, known! { SYS_socket }),
    (SOCKETPAIR, known! { SYS_socketpair }),
    (IOCTL, known! { SYS_ioctl }),
    (PERSONALITY, known! { SYS_personality }),
    (PRLIMIT, known! { SYS_prlimit64 }),
    (MKNODAT, known! { SYS_mknodat }),
    // The tree of mounts, other namespaces, host names.
    (
        FORBIDDEN,
        known! {
            SYS_chroot SYS_mount SYS_pivot_root SYS_setdomainname SYS_sethostname SYS_setns SYS_umount2
        },
    ),
    (
        FORBIDDEN,
        numbered! {
            open_tree = 428 move_mount = 429 fsopen = 430 fsconfig = 431 fsmount = 432 fspick = 433
            mount_setattr = 442 open_tree_attr = 467
        },
    ),
    // Large, young or unconfined parts of the kernel: programs in it, rings that this filter cannot see into, faults
    // held open, memory hidden from it, keys without a namespace, files by handle instead of path.
    (
        FORBIDDEN,
        known! {
            SYS_add_key SYS_bpf SYS_fanotify_init SYS_fanotify_mark SYS_kcmp SYS_keyctl SYS_lookup_dcookie
            SYS_name_to_handle_at SYS_nfsservctl SYS_open_by_handle_at SYS_perf_event_open SYS_request_key
            SYS_userfaultfd
        },
    ),
    (
        FORBIDDEN,
        numbered! { io_uring_setup = 425 io_uring_enter = 426 io_uring_register = 427 memfd_secret = 447 },
    ),
    // The machine itself: its kernel, clock, log, quotas, swap, terminals and memory nodes.
    (
        FORBIDDEN,
        known! {
            SYS_acct SYS_clock_settime SYS_delete_module SYS_finit_module SYS_init_module SYS_kexec_load SYS_mbind
            SYS_migrate_pages SYS_move_pages SYS_quotactl SYS_reboot SYS_set_mempolicy SYS_settimeofday SYS_swapoff
            SYS_swapon SYS_syslog SYS_vhangup
        },
    ),
    (
        FORBIDDEN,
        numbered! { quotactl_fd = 443 set_mempolicy_home_node = 450 },
    ),
    (ABSENT, known! { SYS_remap_file_pages }),
    (
        ABSENT,
        numbered! {
            clone3 = 435 statmount = 457 listmount = 458 lsm_get_self_attr = 459 lsm_set_self_attr = 460 lsm_list_modules = 461
            file_getattr = 468 file_setattr = 469
        },
    ),
    // What x86-64 has beyond that.
    #[cfg(target_arch = "x86_64")]
    (
        SyscallRule::ALLOW,
        known! {
            SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_wait
            SYS_eventfd SYS_fork SYS_futimesat SYS_getdents SYS_getpgrp SYS_getrlimit SYS_inotify_init SYS_lchown
            SYS_link SYS_lstat SYS_mkdir SYS_open SYS_pause SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_renameat
            SYS_rmdir SYS_select SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink SYS_sync_file_range SYS_time
            SYS_unlink SYS_utime SYS_utimes SYS_vfork
        },
    ),
    // uretprobe and uprobe are made by code that the host puts into a process it traces.
    #[cfg(target_arch = "x86_64")]
    (
        SyscallRule::ALLOW,
        numbered! { io_pgetevents = 333 uretprobe = 335 uprobe = 336 },
    ),
    #[cfg(target_arch = "x86_64")]
    (super::conditions::MKNOD, known! { SYS_mknod }),
    #[cfg(target_arch = "x86_64")]
    (
        FORBIDDEN,
        known! {
            SYS_ioperm SYS_iopl SYS_kexec_file_load SYS_modify_ldt SYS_sysfs SYS_uselib SYS_ustat
        },
    ),
    #[cfg(target_arch = "x86_64")]
    (
        FORBIDDEN,
        numbered! { create_module = 174 get_kernel_syms = 177 query_module = 178 },
    ),
    #[cfg(target_arch = "x86_64")]
    (
        ABSENT,
        known! {
            SYS__sysctl SYS_afs_syscall SYS_epoll_ctl_old SYS_epoll_wait_old SYS_get_thread_area SYS_getpmsg
            SYS_putpmsg SYS_security SYS_set_thread_area SYS_tuxcall SYS_vserver
        },
    ),
    #[cfg(target_arch = "aarch64")]
    (
        Rule::ALLOW,
        numbered! { renameat = 38 sync_file_range = 84 getrlimit = 163 setrlimit = 164 io_pgetevents = 292 },
    ),
    #[cfg(target_arch = "aarch64")]
    (FORBIDDEN, numbered! { kexec_file_load = 294 }),
];
